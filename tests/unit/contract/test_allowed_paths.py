"""Paths of models and data must be under an allowed root."""

from pathlib import Path, PurePosixPath

import pytest

from service.core.settings import Settings
from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots, OutsideRootsError
from trainyard.contract.layout import DATA_CACHE
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
    return problems_of(spec, SITE)


def problems_of(spec, site):
    try:
        resolve(parse_spec(spec), site)
    except SpecError as error:
        return {problem.param: problem.message for problem in error.problems}
    return {}


def test_paths_under_a_root_are_accepted():
    assert problems() == {}
    assert problems(model="/shared", eval_path="/shared/./x") == {}


@pytest.mark.parametrize("path", ["/etc/passwd", "/sharedx/m", "/", "//shared2"])
def test_paths_outside_the_roots_are_rejected(path):
    message = (
        "is outside the folders that this service allows: /shared, /home/trainer; "
        "an administrator adds folders in TRAINYARD_ALLOWED_ROOTS"
    )
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


HIDDEN = "/shared/.aws/credentials"
DATA_FIELDS = {
    "data.path": {"data": {"source": "jsonl", "path": HIDDEN}},
    "data.eval_path": {"data": {"source": "jsonl", "path": "/shared/a", "eval_path": HIDDEN}},
    "data.eval_sets.b": {"data": {"source": "jsonl", "path": "/shared/a", "eval_sets": {"b": HIDDEN}}},
    "data.sources.0.path": {
        "data": {
            "source": "mixture",
            "sources": [{"path": HIDDEN, "weight": 1, "name": "a"}, {"path": "/shared/b", "weight": 1, "name": "b"}],
        }
    },
    "model.path": {"model": {"source": "hf", "path": HIDDEN}},
    "lora.adapter": {"lora_rank": 8, "lora": {"adapter": HIDDEN}},
}


@pytest.mark.parametrize("field", DATA_FIELDS)
def test_hidden_files_are_rejected_in_every_field_with_the_remedy(field):
    base = {"model": {"source": "hf", "path": "/shared/m"}, "data": {"source": "jsonl", "path": "/shared/d"}}
    result = problems_of({"task": "causal_lm", "steps": 1, **base, **DATA_FIELDS[field]}, SITE)
    assert result == {field: message_of_hidden(".aws")}


def test_hidden_images_and_mounts_are_rejected():
    images = {"source": "images", "path": HIDDEN, "eval_fraction": 0.5}
    classifier = {"task": "image_classification", "steps": 1, "model": {"source": "hf", "path": "/shared/m"}}
    assert problems_of({**classifier, "data": images}, SITE) == {"data.path": message_of_hidden(".aws")}
    container = {"image": "/shared/.image.sif", "mounts": ["/shared/a:/a", f"{HIDDEN}:/b"]}
    script = {"task": "script", "argv": ["true"], "environment": {"container": container}}
    assert problems_of(script, Site(roots=("/shared",), container_runtime="apptainer")) == {
        "environment.container.image": message_of_hidden(".image.sif"),
        "environment.container.mounts.1": message_of_hidden(".aws"),
    }


def message_of_hidden(name):
    return (
        f"has the hidden name `{name}` in its path, which no spec may read: move the files, or let an administrator "
        "name their folder in TRAINYARD_ALLOWED_ROOTS"
    )


class TestHiddenNames:
    ROOTS = AllowedRoots(allowed=("/home/a", "/home/a/.state/runs", "/home/a/.cache/hub"))

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/home/a/data.jsonl", None),
            ("/home/a/.state/runs/job_1/export", None),
            ("/home/a/.cache/hub/models--x/snapshots/1", None),
            ("/home/a/.cache/hub", None),
            ("/home/a/.cache/other", ".cache"),
            ("/home/a/.netrc", ".netrc"),
            ("/home/a/b/.ssh/id", ".ssh"),
            ("/home/a/.state/runs/.trash/x", ".trash"),
            ("/home/a/.state/runs/files/.upl_1", ".upl_1"),
        ],
    )
    def test_only_names_below_the_deepest_root_count(self, path, name):
        problem = self.ROOTS.hidden_problem(PurePosixPath(path))
        assert problem == (None if name is None else message_of_hidden(name))

    def test_real_path_decides(self, tmp_path):
        root = tmp_path / ".hidden" / "root"
        (root / ".ssh").mkdir(parents=True)
        (root / ".ssh" / "key").write_text("x")
        (root / "plain").write_text("x")
        (root / "file").symlink_to(root / ".ssh" / "key")
        (root / "folder").symlink_to(root / ".ssh")
        (root / ".link").symlink_to(root / "plain")
        (tmp_path / "link").symlink_to(root)
        roots = AllowedRoots(allowed=(str(tmp_path / "link"),))
        assert roots.resolve(tmp_path / "link" / "plain") == (root / "plain").resolve()
        for name in ("file", "folder", "folder/key", ".ssh/key"):
            with pytest.raises(OutsideRootsError, match=r"has the hidden name `\.ssh`") as caught:
                roots.resolve(tmp_path / "link" / name)
            assert str(caught.value) == f"{tmp_path / 'link' / name} {caught.value.problem}"
        assert UNRESTRICTED_ROOTS.resolve(root / "file") == (root / ".ssh" / "key").resolve()


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
    for name in ("state", "state/admin_token", "state/code/x", "key", *database):
        assert not roots.contains(tmp_path / name), name
    assert roots.contains(tmp_path / "state" / "runs" / "job_1" / "export")


def test_runs_are_the_only_default_root(tmp_path):
    default = Settings(state_dir=tmp_path / "state").site.allowed_roots
    assert default.allowed == (str(tmp_path / "state" / "runs"),)
    assert not default.contains(Path.home() / "data.jsonl")
    owner = Settings(state_dir=tmp_path / "state", run_as="owner", allowed_roots="/shared/data")
    assert owner.site.roots == ("/shared/data",)
    assert not owner.site.allowed_roots.contains(tmp_path / "state" / "runs" / "job_1" / "export")
    assert default.contains(tmp_path / "state" / "runs" / "job_1" / "export")
    assert not default.contains(tmp_path / "state" / "admin_token")


class TestRunsDirectory:
    """What attempts keep there is no data: their tokens, claims, launch documents, logs and reports."""

    ROOTS = AllowedRoots(allowed=("/data", "/data/runs", "/data/runs/job_1/attempts/1-a/shared"), runs="/data/runs")

    @pytest.mark.parametrize(
        ("path", "allowed"),
        [
            ("files/0a.jsonl", True),
            ("job_1/export", True),
            ("job_*/export/*.jsonl", True),
            ("job_1/checkpoints/step-000010", True),
            ("job_1/artifacts/mlflow/x.jsonl", True),
            ("job_1/attempts/1-a/shared/x", True),
            ("models/llama", True),
            ("", True),
            ("job_1", False),
            ("job_1/attempts/1-a/token", False),
            ("job_1/spec.json", False),
            (f"{DATA_CACHE}/1000", False),
            ("code/0a", False),
        ],
    )
    def test_only_data_and_results_are_allowed(self, path, allowed):
        assert self.ROOTS.contains(PurePosixPath("/data/runs", path)) == allowed

    def test_links_into_attempts_are_refused(self, tmp_path):
        runs = tmp_path / "runs"
        attempt, export = runs / "job_1" / "attempts" / "1-a", runs / "job_1" / "export"
        for folder in (attempt, export):
            folder.mkdir(parents=True)
            (folder / "token").touch()
        (tmp_path / "linked").symlink_to(runs)
        roots = AllowedRoots(allowed=(str(tmp_path), str(tmp_path / "linked")), runs=str(tmp_path / "linked"))
        assert roots.resolve(tmp_path / "linked" / "job_1" / "export" / "token") == export / "token"
        link = export / "link"
        link.symlink_to(attempt / "token")
        for path in (link, attempt / "token", tmp_path / "linked" / "job_1" / "attempts" / "1-a" / "token"):
            with pytest.raises(OutsideRootsError):
                roots.resolve(path)
