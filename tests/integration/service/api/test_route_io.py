"""Routes use only the database and the run directories, and never the scheduler."""

import gc
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.support.hf import save_llama
from tests.support.seeds import Seeds, seed
from tests.support.wait import wait_until
from tests.support.world import SPEC, World

EXEMPT_ROUTES = {"get_doctor", "make_plan", "stream_jobs"}
"""Routes with tests of their own: they check the installation, read a model folder, or never end."""

_ROOT = Path(__file__).parents[4]
INSTALLATION = (
    *("/proc/mounts", "/dev", sys.prefix, sys.base_prefix),
    *(str(_ROOT / "migrations"), str(_ROOT / "trainyard.egg-info")),
)
SECRETS_KEY = "secrets.key"
"""Its presence is checked at each use, so that a restored key works without a restart."""
READS_KEY = {"readyz", "set_secret"}
MEMORY = "/proc/meminfo"
"""What ranks on this machine share."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
CODE = (".py", ".pyc", ".so")
"""Modules of Python are imported where they are first used."""


IN_TEST: ContextVar[bool] = ContextVar("in_test", default=False)
"""Set in the tests of this file; a request's threads inherit it."""


class FileAccessRecorder:
    """Records the files that Python opens, the folders it lists and the programs it starts; it cannot be removed.

    Threads and garbage that other tests have left in this process do not count.
    """

    def __init__(self) -> None:
        gc.collect()
        IN_TEST.set(True)
        self._earlier_threads = {thread.ident: thread for thread in threading.enumerate()}
        self.events: list[str] = []
        self.programs: list[str] = []
        """Command lines of the programs."""
        sys.addaudithook(self._record)

    def _record(self, event: str, args: tuple[Any, ...]) -> None:
        earlier = self._earlier_threads.get(threading.get_ident())
        # The system reuses the ids of ended threads.
        if earlier is not None and earlier.is_alive() and not IN_TEST.get():
            return
        if event in STARTS:
            self.events.append(event)
            if event == "subprocess.Popen":
                self.programs.append(" ".join(map(os.fsdecode, args[1])))
        elif event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], str | bytes | os.PathLike):
            self.events.append(os.fsdecode(args[0]))


@pytest.fixture(scope="module")
def seeded(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    folder = tmp_path_factory.mktemp("boundaries")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state")
    yield world, seed(world)
    world.database.dispose()


def test_routes_read_only_run_files_and_start_no_program(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    workers, recorder, outside = world.new_client(seeds.worker_token), FileAccessRecorder(), {}
    for path, verbs in world.app.openapi()["paths"].items():
        for verb, operation in verbs.items():
            name = operation["operationId"]
            if name in EXEMPT_ROUTES:
                continue
            client = workers if path.startswith("/v1/attempts/") else world.client
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            recorder.events.clear()
            answer = client.request(verb, fill_path(seeds, name, path), json=example(world, body) if body else None)
            assert answer.status_code < 500, name
            read = elsewhere(recorder, world)
            if name in READS_KEY:
                assert SECRETS_KEY in {Path(path).name for path in recorder.events}
            outside[name] = {path for path in read if name not in READS_KEY or Path(path).name != SECRETS_KEY}
    assert len(outside) > 60
    assert {name: paths for name, paths in outside.items() if paths} == {}


def test_global_stream_reads_only_run_files(seeded: tuple[World, Seeds]) -> None:
    world, _ = seeded
    recorder, broadcaster = FileAccessRecorder(), world.app_state.broadcaster

    def stop_the_service() -> None:
        wait_until(lambda: broadcaster.open_streams > 0, 10, "somebody to follow the stream")
        broadcaster.close()

    stopping = threading.Thread(target=stop_the_service)
    stopping.start()
    answer = world.client.get("/v1/stream", headers={"Last-Event-ID": "0-0"})
    stopping.join()
    assert answer.status_code == 200
    assert "event: " in answer.text
    assert elsewhere(recorder, world) == set()


@pytest.mark.cpu_seconds(6)
def test_plan_reads_only_the_model_folder(
    seeded: tuple[World, Seeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = seeded
    folder = save_llama(tmp_path / "model")
    monkeypatch.setattr(world.settings, "allowed_roots", (str(tmp_path),))
    model, data = {"source": "hf", "path": str(folder)}, {"source": "jsonl", "path": str(tmp_path / "lines.jsonl")}
    recorder = FileAccessRecorder()
    answer = world.client.post("/v1/plans", json={**SPEC, "task": "causal_lm", "model": model, "data": data})
    assert (answer.status_code, answer.json()["unknown"]) == (200, None), answer.text
    # Names without a folder are of the one that is open.
    assert set(recorder.events) >= {str(folder), "config.json", "model.safetensors"}
    assert {path for path in elsewhere(recorder, world) if not Path(path).is_relative_to(folder)} <= {MEMORY}


def test_diagnostics_do_not_call_the_scheduler(
    seeded: tuple[World, Seeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = seeded
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "nvidia-smi"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(world.settings, "backend", "slurm")
    recorder = FileAccessRecorder()
    assert world.client.get("/v1/doctor").status_code == 200
    read = elsewhere(recorder, world) - set(STARTS)
    others = {path for path in read if not path.startswith(INSTALLATION)}
    assert {Path(path).name for path in others} <= {SECRETS_KEY, "models.yaml"}
    sbatch, examination, gpus = recorder.programs
    assert (sbatch, gpus) == ("sbatch --version", "nvidia-smi -L")
    assert examination.startswith(f"{sys.executable} -I -c import importlib.util")


def elsewhere(recorder: FileAccessRecorder, world: World) -> set[str]:
    return {path for path in recorder.events if is_elsewhere(path, world)}


def fill_path(seeds: Seeds, operation: str, path: str) -> str:
    """Return the path with existing ids; fails on a parameter that tests/support/seeds.py does not know."""
    for name in re.findall(r"\{(.*?)\}", path):
        values = seeds.of(operation, name)
        assert values, f"tests/support/seeds.py has no value for {{{name}}}"
        path = path.replace(f"{{{name}}}", values[0])
    return path


def example(world: World, body: dict[str, Any]) -> Any:
    """Return the example of a body, of its schema, or of a schema that it refers to."""
    schemas = world.app.openapi()["components"]["schemas"]
    kinds = [body["schema"], *body["schema"].get("anyOf", ())]
    named = [schemas[kind["$ref"].rpartition("/")[2]] for kind in kinds if "$ref" in kind]
    return next(one["example"] for one in (body, *kinds, *named) if "example" in one)


def is_searched_for_modules(path: Path) -> bool:
    """Whether an import lists this folder, as it does before the first of its modules."""
    return str(path) in sys.path or (path / "__init__.py").is_file()


def is_elsewhere(event: str, world: World) -> bool:
    """Whether an event is a program start or an access outside the run directories; relative paths do not count."""
    path = Path(event)
    return (
        path.suffix not in CODE
        and path.parent.name != "__pycache__"
        and not is_searched_for_modules(path)
        and (event in STARTS or path.is_absolute())
        and not path.is_relative_to(world.settings.runs)
    )
