"""An attempt that is superseded while it saves a checkpoint, such as during an outage of the shared filesystem."""

import pytest
import torch
import torch.distributed as dist

from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import CurrentAttempt, LaunchDocument
from worker.checkpoint.manager import CheckpointManager
from worker.core.distributed import Ranks
from worker.core.fence import SupersededError
from worker.reporting.reporter import NullReporter


@pytest.fixture(scope="module")
def ranks():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    yield Ranks(rank=0, world=1, local_rank=0, device=torch.device("cpu"), bookkeeping=group, checkpoints=group)
    dist.destroy_process_group()


def make_current(run, number):
    current = CurrentAttempt(attempt_id=f"a{number}", attempt=number, execution=number)
    run.current.write_text(current.model_dump_json())


class SupersedingReporter(NullReporter):
    """Makes another attempt the current one during a call of the second save."""

    def __init__(self, run, call):
        self._run = run
        self._call = call
        self._saves = 0

    def flush_to_disk(self):
        self._saves += 1
        self._supersede("flush")

    def checkpoint(self, report):
        self._supersede("report")

    def _supersede(self, call):
        if self._saves == 2 and call == self._call:
            make_current(self._run, 2)


@pytest.mark.fault_scenario(46)
@pytest.mark.parametrize(("call", "complete"), [("flush", [1]), ("report", [1, 2])])
def test_superseded_attempt_neither_completes_nor_removes_a_checkpoint(ranks, tmp_path, call, complete):
    run = RunLayout(tmp_path)
    make_current(run, 1)
    overrides = {"gpus": 1, "strategy": "single", "checkpoint": {"keep_last": 1}}
    spec = resolve(parse_spec(fill_template("mlp_parity", overrides)), Site())
    launch = LaunchDocument(
        job_id="job",
        attempt_id="a1",
        attempt=1,
        tag="ty-test-a1",
        service_url="http://127.0.0.1:1",
        execution=1,
        max_restarts=0,
        ranks_per_node=1,
        spec=spec,
    )
    checkpoints = CheckpointManager(run, launch, 1, ranks)
    checkpoints.bind(SupersedingReporter(run, call))
    for step in (1, 2):
        checkpoints.save(step, {"a": torch.ones(3)}, {})
    with pytest.raises(SupersededError):
        checkpoints.finish()
    assert [checkpoint.step for checkpoint in run.complete_checkpoints()] == complete
