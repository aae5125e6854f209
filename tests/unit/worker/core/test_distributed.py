"""The process group of a spec."""

import pytest

from trainyard.contract.spec.templates import load_template
from trainyard.contract.spec.training_spec import parse_spec
from worker.core import distributed
from worker.core.distributed import _backend, join
from worker.core.errors import RefusedError


def spec(**changes):
    return parse_spec({**load_template("mlp_parity").spec, **changes})


class TestBackend:
    def test_is_the_specs(self):
        assert _backend(spec(backend="gloo")) == "gloo"
        assert _backend(spec(backend="nccl")) == "nccl"

    def test_offloaded_parameters_are_summed_on_the_host_too(self):
        assert _backend(spec(backend="nccl", strategy="fsdp", fsdp={"cpu_offload": True})) == "cpu:gloo,cuda:nccl"

    def test_mpi_is_refused_where_torch_has_none(self, monkeypatch):
        monkeypatch.setattr(distributed.dist, "is_mpi_available", lambda: False)
        with pytest.raises(RefusedError, match="not part of this build of torch"):
            _backend(spec(backend="mpi"))


def test_torch_without_cuda_is_refused_before_a_gpu_is_used(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(distributed.torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(RefusedError, match="built without CUDA") as refused:
        join(spec(backend="nccl"))
    assert "TRAINYARD_ACCELERATOR=cpu" in refused.value.hint
