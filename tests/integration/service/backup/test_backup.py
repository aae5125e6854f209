"""Backup and restore of a database with the service's own commands."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service.backup.commands import backup, restore
from service.backup.database_file import BackupError
from service.core.clock import utc_now
from tests.support.world import World
from trainyard.contract.layout import write_atomic
from trainyard.contract.wire.reports import Claim


class Lines(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


def test_backup_is_restored_with_the_marker(world: World, tmp_path: Path) -> None:
    file, lines = tmp_path / "one.backup", Lines()
    before = world.submit()
    backup(world.settings, file, utc_now(), lines)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    after = world.submit()
    world.start(before)
    claim = Claim(nonce="nonce-0001", host="node1", pid=7)
    write_atomic(world.folder(before).claim, claim.model_dump_json())
    world.database.dispose()
    restore(world.settings, file, utc_now(), lines)
    assert world.client.get(f"/v1/jobs/{before}").status_code == 200
    assert world.client.get(f"/v1/jobs/{after}").status_code == 404
    assert world.settings.restore_marker.exists()
    assert any("1 jobs, 1 of which have not ended" in line for line in lines), lines
    world.tick(3)
    assert world.status(before) == "running"
    assert [orphan["id"] for orphan in world.client.get("/v1/orphans").json()["data"]] == [after]


def test_restore_is_refused_while_a_service_leads(world: World, tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    backup(world.settings, file, utc_now(), Lines())
    world.clock.now = utc_now()
    world.tick()
    with pytest.raises(BackupError, match="a service uses the database"):
        restore(world.settings, file, utc_now(), Lines())
    assert not world.settings.restore_marker.exists()


def test_dry_run_changes_nothing(world: World, tmp_path: Path) -> None:
    file, lines = tmp_path / "one.backup", Lines()
    backup(world.settings, file, utc_now(), lines)
    job = world.submit()
    restore(world.settings, file, utc_now(), lines, dry_run=True)
    assert "would replace" in lines[-1]
    assert (world.status(job), world.settings.restore_marker.exists()) == ("queued", False)


def test_database_restored_by_other_means_only_gets_the_marker(world: World) -> None:
    job, lines = world.submit(), Lines()
    restore(world.settings, None, utc_now(), lines)
    assert (world.status(job), world.settings.restore_marker.exists()) == ("queued", True)
    assert "1 jobs" in lines[0]


@pytest.mark.parametrize("content", [b"", b"no database\n", b"SQLite format 3\0" + b"x" * 5000], ids=range(3))
def test_file_that_is_no_backup_is_refused(world: World, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(BackupError):
        restore(world.settings, tmp_path / "bad", utc_now(), Lines())
    assert not world.settings.restore_marker.exists()


def test_backup_does_not_overwrite_a_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("old")
    with pytest.raises(BackupError, match="exists"):
        backup(world.settings, tmp_path / "one", utc_now(), Lines())
    assert (tmp_path / "one").read_text() == "old"


@pytest.mark.databases("sqlite")
def test_former_sqlite_file_remains_until_it_is_deleted(world: World, tmp_path: Path) -> None:
    file, lines = tmp_path / "one.backup", Lines()
    backup(world.settings, file, utc_now(), lines)
    world.database.dispose()
    restore(world.settings, file, utc_now(), lines)
    database = Path(str(world.database.url.database))
    assert [path for path in database.parent.iterdir() if ".before-restore-" in path.name]


@pytest.mark.databases("sqlite")
def test_schema_of_a_newer_release_is_refused(world: World, tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "one.backup"
    backup(world.settings, file, utc_now(), Lines())
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(BackupError, match="9999"):
        restore(world.settings, file, utc_now(), Lines())


_COMMANDS = """
import json, sys
from service.main import main
statuses = []
for arguments in json.loads(sys.argv[1]):
    try:
        statuses.append(main(arguments))
    except SystemExit as end:
        statuses.append(end.code)
print(statuses)
"""
"""Commands in one process, since its start takes most of the time."""


@pytest.mark.heavy
@pytest.mark.databases("sqlite")
def test_commands_work_from_the_command_line(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "backup"
    commands = [["migrate"], ["backup", str(file)], ["restore", str(file)], ["restore", str(tmp_path / "missing")]]
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, json.dumps([*commands, ["restore"]])],
        env={**os.environ, "TRAINYARD_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 0, 1, 2]"], done.stdout + done.stderr
    assert file.exists()
    assert "the database has 0 jobs" in done.stdout
    assert (state / "runs" / ".restored").exists()
    assert "is not a backup" in done.stderr


def test_file_left_by_others_does_not_become_the_backup(world: World, tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    planted = tmp_path / ".one.backup.unfinished"
    planted.touch()
    planted.chmod(0o666)
    with planted.open("rb") as opened:
        backup(world.settings, file, utc_now(), Lines())
        assert opened.read() == b""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if "one.backup" in path.name) == [planted.name, file.name]
