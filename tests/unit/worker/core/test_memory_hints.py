"""Out of memory: its detection, and the hint for the spec."""

import pytest

from trainyard.contract.spec.training_spec import parse_spec
from worker.core.memory_hints import memory_hint
from worker.core.processes import count_oom_kills
from worker.launcher.elastic import count_restarts, record_failures

BASE = {
    "task": "causal_lm",
    "steps": 1,
    "model": {"source": "builtin", "name": "gpt"},
    "data": {"source": "builtin", "name": "stdlib"},
    "batch": {"size": 64},
    "precision": "fp32",
    "strategy": "ddp",
    "gpus": 4,
}


def settings(on_device=True, **changes):
    hint = memory_hint(parse_spec({**BASE, **changes}), on_device=on_device)
    return [part.split(") ", 1)[1].split(":")[0] for part in hint.removesuffix(".").split("; ")]


@pytest.mark.parametrize("on_device", [False, True])
def test_hint_for_a_program_names_no_field_that_it_does_not_read(on_device):
    hint = memory_hint(parse_spec({"task": "script", "argv": ["a.py"], "gpus": 2}), on_device=on_device)
    assert ("memory_gb_per_gpu" in hint, "batch.micro" in hint) == (not on_device, False)


class TestHint:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, ["batch.micro_size", "activation_checkpointing", "precision"]),
            ({"batch": {"size": 64, "micro_size": 1}}, ["activation_checkpointing", "precision", "strategy"]),
            (
                {"activation_checkpointing": "full", "precision": "bf16"},
                ["batch.micro_size", "activation_checkpointing", "strategy"],
            ),
            (
                {
                    "batch": {"size": 4, "micro_size": 1},
                    "activation_checkpointing": "full",
                    "precision": "bf16",
                    "strategy": "fsdp",
                },
                ["activation_checkpointing", "lora_rank", "fsdp.cpu_offload"],
            ),
            (
                {
                    "batch": {"size": 1},
                    "activation_checkpointing": "offload",
                    "precision": "bf16",
                    "strategy": "single",
                    "gpus": 1,
                },
                ["lora_rank", "strategy"],  # two ranks have no micro-batches of one example
            ),
            ({"on_device": False}, ["batch.micro_size", "activation_checkpointing", "strategy"]),
        ],
    )
    def test_hint_names_three_effective_settings(self, changes, expected):
        assert settings(**changes)[:3] == expected

    def test_hint_proposes_half_the_micro_batch_size(self):
        assert "batch.micro_size: 8 " in memory_hint(parse_spec(BASE), on_device=True)
        assert "batch.micro_size: 2 " in memory_hint(
            parse_spec({**BASE, "batch": {"size": 64, "micro_size": 4}}), on_device=True
        )


class TestKernelKills:
    @pytest.mark.parametrize(
        ("membership", "file"),
        [
            ("0::/slurm/job_1\n", "slurm/job_1/memory.events"),
            ("4:cpu,memory:/job\n0::/\n", "memory/job/memory.oom_control"),
            ("4:memory:/elsewhere\n", "memory/memory.oom_control"),
        ],
    )
    def test_kills_are_counted_in_cgroup_v1_and_v2(self, tmp_path, membership, file):
        (tmp_path / "cgroup").write_text(membership)
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("oom 7\noom_kill_disable 0\noom_kill 3\n")
        assert count_oom_kills(tmp_path / "cgroup", tmp_path) == 3

    def test_kills_are_zero_without_a_kernel_counter(self, tmp_path):
        assert count_oom_kills(tmp_path / "nothing", tmp_path) == 0


class Item:
    def __init__(self, **fields):
        self.__dict__ |= fields


class TestExecutionNumber:
    def test_execution_number_is_equal_on_all_nodes(self):
        group = Item(spec=Item(max_restarts=3))
        nodes = [Item(_remaining_restarts=3), Item(_remaining_restarts=3)]
        starts = [count_restarts(lambda agent, group: 3 - agent._remaining_restarts) for _ in nodes]
        numbers = []
        for failing in (None, 0, 1, 0):
            if failing is not None:
                # torchrun does this only on the node of the failed rank.
                nodes[failing]._remaining_restarts -= 1
            numbers.append([start(node, group) for start, node in zip(starts, nodes, strict=True)])
        assert numbers == [[0, 0], [1, 1], [2, 2], [3, 3]]


class TestFailedExecution:
    def test_failed_execution_is_recorded_with_its_ranks(self, tmp_path):
        failure = Item(exitcode=-11, pid=5, timestamp=9, error_file="<N/A>")
        results = iter([Item(failures={}), Item(failures={3: failure})])
        monitor = record_failures(
            lambda agent, group: next(results), lambda restart: tmp_path / f"{restart}.json", lambda restart: False
        )
        agent, group = Item(_remaining_restarts=1), Item(spec=Item(max_restarts=2))
        monitor(agent, group)
        assert list(tmp_path.iterdir()) == []
        monitor(agent, group)
        assert '"rank": 3, "exitcode": -11' in (tmp_path / "1.json").read_text()
