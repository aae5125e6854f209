"""What the API serves of run directories whose owners plant links and move folders."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.db.models import Job
from tests.support.owners import UnixUser
from tests.support.world import World

FILES = {"export/config.json": "{}", "artifacts/table.txt": "private to bob"}


@pytest.fixture
def world(database_url: str, tmp_path: Path, people: list[UnixUser]) -> Iterator[World]:
    made = World(database_url, tmp_path / "state")
    yield made
    made.database.dispose()


@pytest.fixture
def runs(world: World, people: list[UnixUser]) -> tuple[Path, Path]:
    """Return the run folders of ada and bob, with an export and an artifact each."""
    world.settings.run_as = world.app_state.settings.run_as = "service"
    folders = []
    for user in people[:2]:
        job = world.submit()
        run = world.app_state.run_layout(job).root
        for path, text in FILES.items():
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            (run / path).write_text(text)
        for path in (run, *run.rglob("*")):
            os.chown(path, user.uid, -1)
        with world.database.write() as session:
            session.execute(sa.update(Job).where(Job.id == job).values(unix_uid=user.uid))
        folders.append(run)
    world.settings.run_as = world.app_state.settings.run_as = "owner"
    return folders[0], folders[1]


def served(world: World, run: Path) -> list[str]:
    """Return the contents of the files and lists of a job that the API serves."""
    base = f"/v1/jobs/{run.name}"
    contents = []
    for path in ("export/config.json", "artifacts/table.txt"):
        folder, _, name = path.partition("/")
        route = f"{base}/export/files/{name}" if folder == "export" else f"{base}/artifacts/{name}"
        answer = world.client.get(route)
        contents += [answer.text] if answer.status_code == 200 else []
    for route in ("export/files", "artifacts"):
        contents += [str(file["path"]) for file in world.client.get(f"{base}/{route}").json().get("data", [])]
    archive = world.client.get(f"{base}/export/archive")
    contents += ["archive"] if archive.status_code == 200 and b"config.json" in archive.content else []
    return contents


@pytest.mark.databases("sqlite")
class TestServedFiles:
    def test_files_of_the_owner_are_served(self, world: World, runs: tuple[Path, Path]) -> None:
        assert served(world, runs[0]) == [*FILES.values(), "config.json", "table.txt", "archive"]

    def test_a_link_in_place_of_the_run_folder_serves_nothing(self, world: World, runs: tuple[Path, Path]) -> None:
        ada, bob = runs
        ada.rename(ada.with_name("moved"))
        ada.symlink_to(bob)
        assert served(world, ada) == []

    def test_a_folder_of_another_account_serves_nothing(self, world: World, runs: tuple[Path, Path]) -> None:
        ada, bob = runs
        ada.rename(ada.with_name("moved"))
        bob.rename(ada)
        assert served(world, ada) == []

    @pytest.mark.parametrize("name", ["export", "artifacts"])
    def test_a_link_to_a_folder_of_another_account_serves_nothing_of_it(
        self, world: World, runs: tuple[Path, Path], name: str
    ) -> None:
        ada, bob = runs
        (ada / name).rename(ada / "moved")
        (ada / name).symlink_to(bob / name)
        assert not {"config.json" if name == "export" else "table.txt", "archive" if name == "export" else ""} & set(
            served(world, ada)
        )

    def test_a_hard_link_to_a_file_of_another_account_is_not_served(
        self, world: World, runs: tuple[Path, Path]
    ) -> None:
        ada, bob = runs
        (ada / "artifacts/table.txt").unlink()
        os.link(bob / "artifacts/table.txt", ada / "artifacts/table.txt")
        assert "private to bob" not in served(world, ada)
