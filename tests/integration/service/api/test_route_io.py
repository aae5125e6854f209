"""What a request touches: the database and the run directories; no other file, and no scheduler."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hf import save_llama
from tests.support.seeds import Seeds, sow
from tests.support.wait import wait_until
from tests.support.world import SPEC, World

OF_THEIR_OWN = {"get_doctor", "make_plan", "stream_jobs"}
"""Each has a test of its own: the first is there to look at the installation, the second reads a model's folder under
the allowed roots, the third has no end."""

_ROOT = Path(__file__).parents[4]
INSTALLATION = (
    *("/proc/mounts", "/dev", sys.prefix, sys.base_prefix),
    *(str(_ROOT / "migrations"), str(_ROOT / "trainyard.egg-info")),
)
MEMORY = "/proc/meminfo"
"""What ranks on this machine share."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
CODE = (".py", ".pyc", ".so")
"""Modules of Python are imported where they are first used."""


class Witness:
    """Sees every file that Python opens, every folder it lists and every program it starts. It cannot be taken away."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.programs: list[str] = []
        """With their arguments."""
        sys.addaudithook(self._saw)

    def _saw(self, event: str, args: tuple[Any, ...]) -> None:
        if event in STARTS:
            self.seen.append(event)
            if event == "subprocess.Popen":
                self.programs.append(" ".join(map(os.fsdecode, args[1])))
        elif event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], str | bytes | os.PathLike):
            self.seen.append(os.fsdecode(args[0]))


@pytest.fixture(scope="module")
def sown(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    folder = tmp_path_factory.mktemp("boundaries")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state")
    yield world, sow(world)
    world.database.dispose()


def test_no_route_reads_beyond_the_runs_or_starts_a_program(sown: tuple[World, Seeds]) -> None:
    world, seeds = sown
    workers, witness, strayed = world.new_client(seeds.worker_token), Witness(), {}
    for path, verbs in world.app.openapi()["paths"].items():
        for verb, operation in verbs.items():
            name = operation["operationId"]
            if name in OF_THEIR_OWN:
                continue
            client = workers if path.startswith("/v1/attempts/") else world.client
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            witness.seen.clear()
            answer = client.request(verb, filled(seeds, name, path), json=example(world, body) if body else None)
            assert answer.status_code < 500, name
            strayed[name] = elsewhere(witness, world)
    assert len(strayed) > 60
    assert {name: places for name, places in strayed.items() if places} == {}


def test_the_stream_of_all_jobs_neither(sown: tuple[World, Seeds]) -> None:
    world, _ = sown
    witness, broadcaster = Witness(), world.services.broadcaster

    def stop_the_service() -> None:
        wait_until(lambda: broadcaster.open_streams > 0, 10, "somebody to follow the stream")
        broadcaster.close()

    stopping = threading.Thread(target=stop_the_service)
    stopping.start()
    answer = world.client.get("/v1/stream", headers={"Last-Event-ID": "0-0"})
    stopping.join()
    assert answer.status_code == 200
    assert "event: " in answer.text
    assert elsewhere(witness, world) == set()


def test_a_plan_reads_the_models_folder_alone(
    sown: tuple[World, Seeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = sown
    folder = save_llama(tmp_path / "model")
    monkeypatch.setattr(world.settings, "allowed_roots", (str(tmp_path),))
    model, data = {"source": "hf", "path": str(folder)}, {"source": "jsonl", "path": str(tmp_path / "lines.jsonl")}
    witness = Witness()
    answer = world.client.post("/v1/plans", json={**SPEC, "task": "causal_lm", "model": model, "data": data})
    assert (answer.status_code, answer.json()["unknown"]) == (200, None), answer.text
    read = elsewhere(witness, world)
    assert {Path(place).name for place in read} >= {"config.json", "model.safetensors"}
    assert {place for place in read if not Path(place).is_relative_to(folder)} <= {MEMORY}


def test_the_doctor_reads_of_the_installation_and_asks_no_scheduler(
    sown: tuple[World, Seeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = sown
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "nvidia-smi"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(world.settings, "backend", "slurm")
    witness = Witness()
    assert world.client.get("/v1/doctor").status_code == 200
    read = elsewhere(witness, world) - set(STARTS)
    assert {place for place in read if not place.startswith(INSTALLATION)} == set()
    assert witness.programs == ["sbatch --version", "nvidia-smi -L"]


def elsewhere(witness: Witness, world: World) -> set[str]:
    return {place for place in witness.seen if is_elsewhere(place, world)}


def filled(seeds: Seeds, operation: str, path: str) -> str:
    """The path with ids of what is there."""
    parts = [part.strip("{}") if part.startswith("{") else None for part in path.split("/")]
    known = [seeds.of(operation, name) if name else None for name in parts]
    return "/".join(found[0] if found else part for part, found in zip(path.split("/"), known, strict=True))


def example(world: World, body: dict[str, Any]) -> Any:
    """Of the body, of its schema, or of the schema that it names."""
    schemas = world.app.openapi()["components"]["schemas"]
    kinds = [body["schema"], *body["schema"].get("anyOf", ())]
    named = [schemas[kind["$ref"].rpartition("/")[2]] for kind in kinds if "$ref" in kind]
    return next(one["example"] for one in (body, *kinds, *named) if "example" in one)


def is_elsewhere(place: str, world: World) -> bool:
    """Whether it is no file of a run. What is opened below a folder that is open already has no more than a name."""
    path = Path(place)
    return (
        path.suffix not in CODE
        and (place in STARTS or path.is_absolute())
        and not path.is_relative_to(world.settings.runs)
    )
