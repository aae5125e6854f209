"""Paths of models and data must be under an allowed root."""

from pathlib import PurePosixPath

import pytest

from service.core.settings import Settings
from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec

SITE = Site(roots=("/shared", "/home/trainer"))


def problems(model="/shared/m", data="/home/trainer/d.jsonl", **more):
    spec = {
        "task": "causal_lm",
        "steps": 1,
        "model": {"source": "hf", "path": model},
        "data": {"source": "jsonl", "path": data, **more},
    }
    try:
        resolve(parse_spec(spec), SITE)
    except SpecError as error:
        return {problem.param: problem.message for problem in error.problems}
    return {}


def test_paths_under_a_root_are_accepted():
    assert problems() == {}
    assert problems(model="/shared", eval_path="/shared/./x") == {}


@pytest.mark.parametrize("path", ["/etc/passwd", "/sharedx/m", "/", "//shared2"])
def test_paths_outside_the_roots_are_rejected(path):
    message = "is outside the folders that this service allows (TRAINYARD_ALLOWED_ROOTS): /shared, /home/trainer"
    assert problems(model=path) == {"model.path": message}
    assert problems(data=path) == {"data.path": message}
    assert problems(eval_path=path) == {"data.eval_path": message}
    assert problems(eval_sets={"a": "/shared/a", "b": path}) == {"data.eval_sets.b": message}


@pytest.mark.parametrize("path", ["/shared/../etc", "/shared/a/.."])
def test_parent_references_are_rejected(path):
    assert problems(model=path) == {"model.path": "must not contain `..`"}


@pytest.mark.parametrize("path", ["m", "~/m", "./m"])
def test_relative_paths_are_rejected(path):
    assert next(iter(problems(model=path).values())).startswith("must be an absolute path")


class TestAllowedRoots:
    ROOTS = AllowedRoots(allowed=("/home/a", "/home/a/state/runs"), excluded=("/home/a/state", "/home/a/key"))

    @pytest.mark.parametrize(
        ("path", "allowed"),
        [
            ("/home/a/data.jsonl", True),
            ("/home/a/state/runs/job_1/export", True),
            ("/home/a/state", False),
            ("/home/a/state/admin_token", False),
            ("/home/a/key", False),
            ("/home/a/keys", True),
            ("/home/b", False),
        ],
    )
    def test_deepest_folder_decides(self, path, allowed):
        assert self.ROOTS.contains(PurePosixPath(path)) is allowed

    def test_real_path_decides(self, tmp_path):
        state, data = tmp_path / "state", tmp_path / "data"
        for folder in (state / "runs", data, tmp_path / "elsewhere"):
            folder.mkdir(parents=True)
        roots = AllowedRoots(allowed=(str(data), str(tmp_path / "link"), str(state / "runs")), excluded=(str(state),))
        (tmp_path / "link").symlink_to(data)
        for name, target in (("state", state), ("out", tmp_path / "elsewhere"), ("runs", state / "runs")):
            (data / name).symlink_to(target)
        (data / "loop").symlink_to(data / "loop")
        assert roots.resolve(tmp_path / "link" / "runs") == (state / "runs").resolve()
        for name in ("state", "out"):
            with pytest.raises(OutsideRootsError, match="leads out of the folders"):
                roots.resolve(data / name)
        with pytest.raises((OSError, RuntimeError)):
            roots.resolve(data / "loop")


def test_services_own_files_are_never_allowed(tmp_path):
    settings = Settings(
        state_dir=tmp_path / "state",
        allowed_roots=(str(tmp_path),),
        secrets_key_file=tmp_path / "key",
        database_url=f"sqlite:///{tmp_path}/db.sqlite",
    )
    roots = settings.site.allowed_roots
    assert roots.contains(tmp_path / "data.jsonl")
    database = ("db.sqlite", "db.sqlite-wal", "db.sqlite-shm", "db.sqlite-journal")
    for name in ("state", "state/admin_token", "state/runs/x", "key", *database):
        assert not roots.contains(tmp_path / name), name
    default = Settings(state_dir=tmp_path / "state").site.allowed_roots
    assert default.contains(tmp_path / "state" / "runs" / "job_1" / "export")
    assert not default.contains(tmp_path / "state" / "admin_token")
