"""`micro_size: auto` on real ranks: a size that does not fit is halved, and the losses do not change."""

import json

import pytest

from tests.integration.worker.harness import FakeService, Run, spooled

SPEC = {"batch.size": 20, "batch.micro_size": "auto", "optimizer.momentum": 0.9, "epochs": 2}


class TestMicroBatchOutOfMemory:
    @pytest.mark.slow
    def test_size_is_halved_on_all_ranks_with_identical_losses(self, tmp_path):
        # Only one rank runs out of memory, above 3 examples, but all ranks reduce their size.
        faults = [{"kind": "memory_above", "examples": 3, "rank": 1}]
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, SPEC | {"steps": 6, "epochs": None})
            attempt = run.run(1, faults=faults)
            (event,) = service.events_of_type("micro_size_chosen")
            again = Run(tmp_path / "job", service.url, SPEC | {"steps": 9, "epochs": None})
            second = again.run(2, faults=faults)
            assert len(service.events_of_type("micro_size_chosen")) == 1
            explicit = Run(tmp_path / "other", service.url, SPEC | {"steps": 6, "epochs": None, "batch.micro_size": 3})
            reference = explicit.run(1)
        assert event["data"]["tried"] == [10, 5, 3]
        assert event["data"]["micro_size"] == 3
        assert "4 micro-batches per rank and step" in event["message"]
        assert json.loads(run.layout.micro_size.read_text())["micro_size"] == 3
        assert spooled(attempt, 1) == spooled(reference, 1)
        assert "dry run of" in attempt.rank_log(1).read_text()
        log = second.rank_log(1).read_text()
        assert "dry run of" not in log
        assert sorted(spooled(second, 11)) == [7, 8, 9]
