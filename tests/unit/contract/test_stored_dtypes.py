"""Data types of parameters, gradients and moments: accepted combinations, and the remedy for each refused one."""

from typing import Any

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import adjusted_differences, fixed_differences
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec

CPU, CUDA = Site("cpu", "local"), Site("cuda", "slurm")
HALF = {"precision": "bf16", "param_dtype": "bf16"}
INT8 = {"optimizer": {"state_dtype": "int8"}}


def spec(**changes: Any) -> TrainingSpec:
    base = {
        "task": "regression",
        "steps": 10,
        "model": {"name": "mlp"},
        "data": {"source": "builtin", "name": "parity"},
    }
    return parse_spec(base | changes)


def problems(site: Site = CPU, **changes: Any) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        resolve(spec(**changes), site)
    return [(problem.param or "", problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "fsdp"])
@pytest.mark.parametrize("gradients", ["fp32", "bf16"])
def test_sharded_strategies_store_gradients_in_either_type(strategy: str, gradients: str) -> None:
    resolved = resolve(spec(**HALF, **INT8, strategy=strategy, grad_dtype=gradients, gpus=2), CPU)
    assert (resolved.param_dtype, resolved.grad_dtype) == ("bf16", gradients)


def test_default_is_fp32_throughout() -> None:
    resolved = resolve(spec(), CUDA)
    assert (resolved.param_dtype, resolved.grad_dtype, resolved.optimizer.state_dtype) == ("fp32", "fp32", "fp32")


def test_auto_precision_on_gpus_fits_parameters_in_bf16() -> None:
    assert resolve(spec(param_dtype="bf16"), CUDA).precision == "bf16"


@pytest.mark.parametrize(("gradients", "strategy"), [("fp32", "zero2"), ("bf16", "ddp")])
def test_auto_selects_a_strategy_that_sums_gradients_in_their_type(gradients: str, strategy: str) -> None:
    assert resolve(spec(**HALF, grad_dtype=gradients, gpus=2), CUDA).strategy == strategy


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"param_dtype": "bf16"}, "param_dtype", "is for precision `bf16` or `fp8`"),
        ({"param_dtype": "bf16", "precision": "fp16"}, "param_dtype", "`precision` is `fp16`"),
        ({"grad_dtype": "bf16"}, "grad_dtype", "set `param_dtype: bf16`"),
        ({**HALF, "strategy": "ddp", "gpus": 2}, "grad_dtype", "use `grad_dtype: bf16`, or strategy `zero2`"),
        ({**HALF, "optimizer": {"name": "muon"}}, "param_dtype", "use `adamw`"),
        ({"optimizer": {"name": "adafactor", "state_dtype": "bf16"}}, "optimizer.state_dtype", "use `adamw`"),
        ({"optimizer": {"name": "sgd", "state_dtype": "bf16"}}, "optimizer.state_dtype", "set `optimizer.momentum`"),
    ],
)
def test_refused_combinations_name_a_remedy(changes: dict[str, Any], field: str, remedy: str) -> None:
    ((param, message),) = problems(**changes)
    assert param == field
    assert remedy in message


def test_offloaded_values_are_in_fp32() -> None:
    offloaded = {"strategy": "fsdp", "fsdp": {"cpu_offload": True}}
    refused = problems(CUDA, **HALF, **INT8, **offloaded)
    assert {param for param, _ in refused} == {"param_dtype", "optimizer.state_dtype"}


def test_threads_of_one_process_have_parameters_in_fp32() -> None:
    assert [param for param, _ in problems(CUDA, **HALF, strategy="dp", gpus=2)] == ["param_dtype"]


def test_types_may_differ_between_a_job_and_its_continuation() -> None:
    other = spec(**HALF, **INT8, grad_dtype="bf16")
    source = spec(precision="bf16")
    assert fixed_differences(source, other) == []
    assert adjusted_differences(source, other) == ["optimizer.state_dtype", "param_dtype", "grad_dtype"]
