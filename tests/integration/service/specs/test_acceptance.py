"""A spec is parsed and resolved once, and then passed on."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from service.db.engine import Database
from tests.integration.service.cluster.test_cluster import on_slurm
from tests.support.world import World
from trainyard.contract.spec.training_spec import TrainingSpec


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts validations of specs, and database sessions."""
    counted: Counter[str] = Counter()
    validate, read, write = TrainingSpec.model_validate, Database.read, Database.write

    def count_validation(*args: Any, **options: Any) -> TrainingSpec:
        counted["validations"] += 1
        return validate(*args, **options)

    @contextmanager
    def count_read(self: Database) -> Iterator[Any]:
        counted["reads"] += 1
        with read(self) as session:
            yield session

    @contextmanager
    def count_write(self: Database) -> Iterator[Any]:
        counted["writes"] += 1
        with write(self) as session:
            yield session

    monkeypatch.setattr(TrainingSpec, "model_validate", count_validation)
    monkeypatch.setattr(Database, "read", count_read)
    monkeypatch.setattr(Database, "write", count_write)
    return counted


@pytest.mark.parametrize("accelerator", ["cpu", "auto"])
def test_post_and_submission_validate_a_spec_once_each(world: World, counts: Counter[str], accelerator: str) -> None:
    world.settings.accelerator = accelerator  # type: ignore[assignment]
    on_slurm(world)
    world.tick()
    counts.clear()
    world.tick()
    idle = counts.copy()
    counts.clear()
    world.submit()
    assert (counts["validations"], counts["reads"]) == (1, 2), "authentication and the cluster snapshot are read"
    counts.clear()
    world.tick()
    added = counts - idle
    assert len(world.scheduler.submitted) == 1
    assert added == {"validations": 1, "reads": 2, "writes": 3}, "3 writes: the attempt, the announcement, the answer"
