import errno
import shutil
from datetime import UTC, datetime

import pytest

from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.sections import Checkpoint, KeepBest
from trainyard.contract.wire.manifest import Manifest, ManifestFile
from worker.checkpoint.digests import file_sha256
from worker.checkpoint.discovery import discover
from worker.checkpoint.manager import SaveFailures, removable_steps
from worker.checkpoint.storage import CheckpointFilesError

NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "/runs/step-1")


def manifest(step, files=None, **metrics):
    return Manifest(
        job_id="j",
        step=step,
        execution=1,
        attempt=1,
        world_size=1,
        strategy="ddp",
        files=files or {},
        metrics={key.replace("__", "/"): value for key, value in metrics.items()},
        created_at=datetime.now(UTC),
    )


def write(run, step, content=b"weights"):
    checkpoint = run.checkpoint(step)
    checkpoint.root.mkdir(parents=True)
    data = checkpoint.root / "data"
    data.write_bytes(content)
    files = {"data": ManifestFile(size=len(content), sha256=file_sha256(data))}
    checkpoint.manifest.write_text(manifest(step, files).model_dump_json())
    return data


def unlink_manifests(folder):
    for manifest_file in folder.glob("*/manifest.json"):
        manifest_file.unlink()


@pytest.fixture
def run(tmp_path):
    return RunLayout(tmp_path)


class TestRemovable:
    def test_latest_checkpoints_are_retained(self):
        assert removable_steps([manifest(step) for step in (1, 2, 3, 4)], Checkpoint(keep_last=2)) == [1, 2]

    def test_best_checkpoint_is_retained_and_nan_is_never_best(self):
        policy = Checkpoint(keep_last=1, keep_best=KeepBest(metric="eval/loss", mode="min"))
        losses = {1: float("nan"), 2: 0.3, 3: 0.5, 4: 0.9}
        assert removable_steps([manifest(step, eval__loss=loss) for step, loss in losses.items()], policy) == [1, 3]

    def test_later_of_equally_good_checkpoints_is_retained(self):
        policy = Checkpoint(keep_last=1, keep_best=KeepBest(metric="eval/accuracy", mode="max"))
        assert removable_steps([manifest(step, eval__accuracy=1.0) for step in (1, 2, 3)], policy) == [1, 2]

    def test_checkpoint_without_evaluation_is_never_best(self):
        policy = Checkpoint(keep_last=1, keep_best=KeepBest())
        assert removable_steps([manifest(1, eval__loss=2.0), manifest(2), manifest(3)], policy) == [2]


class TestDiscover:
    def test_no_checkpoint(self, run):
        assert discover(run).latest is None

    def test_latest_complete_checkpoint_is_used(self, run):
        write(run, 1)
        write(run, 2)
        assert discover(run).latest.step == 2

    def test_checkpoints_before_a_retry_from_scratch_are_removed(self, run):
        write(run, 1)
        result = discover(run, first_execution=2)
        assert (result.latest, result.manifests, result.skipped) == (None, [], {})
        assert not run.checkpoint(1).root.exists()

    @pytest.mark.fault_scenario(27)
    @pytest.mark.parametrize(
        ("damage", "problem"),
        [
            (lambda data: data.write_bytes(b"weightz"), "digest"),
            (lambda data: data.write_bytes(b"weigh"), "5 bytes instead of 7"),
            (lambda data: data.unlink(), "missing"),
            (lambda data: (data.parent / "manifest.json").write_text("{"), "Invalid JSON"),
        ],
    )
    def test_damaged_checkpoint_is_renamed_and_the_previous_is_used(self, run, damage, problem):
        write(run, 1)
        damage(write(run, 2))
        result = discover(run)
        assert result.latest.step == 1
        assert problem in result.skipped[2]
        assert not run.checkpoint(2).root.exists()
        assert (run.checkpoints / "step-0000000002.damaged").is_dir()

    @pytest.mark.fault_scenario(26, 47)
    @pytest.mark.parametrize("known", [None, 1])
    def test_incomplete_checkpoint_is_removed_and_reported(self, run, known):
        write(run, 1)
        run.checkpoint(3).root.mkdir()
        result = discover(run, known_step=known)
        assert (result.latest.step, result.skipped, result.incomplete) == (1, {}, [3])
        assert not run.checkpoint(3).root.exists()

    @pytest.mark.fault_scenario(47)
    def test_newest_checkpoint_whose_manifest_was_deleted_is_damaged(self, run):
        write(run, 1)
        write(run, 2)
        run.checkpoint(2).manifest.unlink()
        result = discover(run, known_step=2)
        assert (result.latest.step, result.skipped) == (1, {2: "its manifest is missing"})
        assert (run.checkpoints / "step-0000000002.damaged" / "data").read_bytes() == b"weights"

    def test_checkpoint_that_retention_had_begun_to_remove_is_not_damaged(self, run):
        write(run, 1)
        write(run, 2)
        run.checkpoint(1).manifest.unlink()
        result = discover(run, known_step=1)
        assert (result.latest.step, result.skipped) == (2, {})
        assert not run.checkpoint(1).root.exists()


class TestAllDamaged:
    def test_every_start_is_refused_until_one_from_scratch(self, run):
        for step in (1, 2):
            write(run, step).write_bytes(b"weightz")
        first = discover(run, execution=4)
        assert (first.latest, set(first.skipped), first.all_damaged) == (None, {1, 2}, True)
        assert discover(run, execution=5).all_damaged
        assert not discover(run, first_execution=6, execution=6).all_damaged

    def test_a_restored_checkpoint_is_used(self, run):
        write(run, 1).write_bytes(b"weightz")
        assert discover(run).all_damaged
        write(run, 1)
        assert (discover(run).latest.step, discover(run).all_damaged) == (1, False)
        assert not run.damage.exists()

    def test_a_run_without_checkpoints_starts(self, run):
        assert not discover(run).all_damaged

    @pytest.mark.parametrize("delete", [shutil.rmtree, unlink_manifests])
    def test_a_run_whose_checkpoints_were_deleted_does_not_start(self, run, delete):
        for step in (1, 2):
            write(run, step)
        delete(run.checkpoints)
        assert discover(run, known_step=2).all_damaged
        assert not discover(run, first_execution=6, execution=6).all_damaged


def wrapped(error: OSError) -> CheckpointFilesError:
    try:
        raise CheckpointFilesError(f"rank 0: {error}") from error
    except CheckpointFilesError as raised:
        return raised


def test_each_cause_is_reported_once_an_hour() -> None:
    now = [0.0]
    failures = SaveFailures(now=lambda: now[0])
    reported = []
    for step in range(1, 181):
        now[0] += 60.0
        if message := failures.add(step, wrapped(OSError(errno.ENOSPC, "No space left on device", f"/step-{step}"))):
            reported.append((step, message))
    assert [step for step, _ in reported] == [1, 61, 121]
    assert reported[0][1].startswith("the checkpoint of step 1 could not be written: rank 0: [Errno 28] No space left")
    assert "(59 more since the last such event)" in reported[1][1]


def test_another_cause_is_reported_at_once() -> None:
    failures = SaveFailures(now=lambda: 0.0)
    assert failures.add(1, NO_SPACE)
    assert failures.add(2, OSError(errno.EROFS, "Read-only file system"))
    assert failures.add(3, FileExistsError(errno.EEXIST, "File exists"))


def test_a_cause_that_returns_after_a_success_is_reported_again() -> None:
    failures = SaveFailures(now=lambda: 0.0)
    assert [bool(failures.add(step, NO_SPACE)) for step in (1, 2)] == [True, False]
    failures.reset()
    assert failures.add(3, NO_SPACE)
