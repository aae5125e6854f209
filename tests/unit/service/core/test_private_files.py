"""Files that only the account of the service can read."""

import stat
from pathlib import Path

from service.core.private_files import restrict_permissions


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_access_of_other_accounts_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    file = state / "trainyard.sqlite"
    for ending in ("", "-wal"):
        Path(f"{file}{ending}").touch()
        Path(f"{file}{ending}").chmod(0o644)
    restrict_permissions(state, f"sqlite:///{file}")
    assert [mode(state), mode(file), mode(Path(f"{file}-wal"))] == [0o700, 0o600, 0o600]


def test_new_database_is_created_private(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "x.sqlite"
    restrict_permissions(tmp_path, f"sqlite:///{file}")
    assert mode(file) == 0o600


def test_postgres_url_creates_no_file(tmp_path: Path) -> None:
    restrict_permissions(tmp_path, "postgresql+psycopg://somebody@db.example/x")
    assert list(tmp_path.iterdir()) == []
