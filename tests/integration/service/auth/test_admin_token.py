"""The administrator's token: generated at the first start, or set by an operator on every replica."""

from pathlib import Path

import pytest

from service.auth.principals import ensure_admin_token, register_admin_token
from service.auth.tokens import new_user_token
from service.core.errors import ServiceError
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def given(folder: Path, text: str) -> Path:
    path = folder / "given"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def statuses(world: World, *tokens: str) -> list[int]:
    return [world.new_client(token).get("/v1/jobs").status_code for token in tokens]


@pytest.mark.databases("sqlite", "postgres")
def test_second_service_keeps_existing_admin_tokens_valid(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other" / "admin_token"
    other.parent.mkdir()
    ensure_admin_token(world.database, other, world.clock())
    assert statuses(world, world.token, other.read_text().strip()) == [200, 200]


def test_replicas_share_the_given_admin_token(world: World, tmp_path: Path) -> None:
    path = given(tmp_path, new_user_token())
    for _ in range(3):
        register_admin_token(world.database, path, world.clock())
    assert statuses(world, path.read_text().strip(), world.token) == [200, 200]
    assert len(world.client.get("/v1/tokens").json()["data"]) == 2


def test_revoked_admin_token_stays_revoked(world: World, tmp_path: Path) -> None:
    path = given(tmp_path, new_user_token())
    register_admin_token(world.database, path, world.clock())
    world.client.delete(f"/v1/tokens/{path.read_text().split('_')[1]}")
    with pytest.raises(ServiceError, match="was revoked"):
        register_admin_token(world.database, path, world.clock())


def test_token_with_the_id_of_another_is_rejected(world: World, tmp_path: Path) -> None:
    digits = world.token.split("_")[1]
    with pytest.raises(ServiceError, match="another token has its id"):
        register_admin_token(world.database, given(tmp_path, f"ty_{digits}_{'x' * 32}"), world.clock())
    assert statuses(world, world.token) == [200]


@pytest.mark.parametrize("text", ["", "secret", "ty_0123456789ab_short", f"tyw_0123456789ab_{'x' * 32}"])
def test_malformed_admin_token_is_rejected(world: World, tmp_path: Path, text: str) -> None:
    with pytest.raises(ServiceError, match="is empty" if not text else "must hold ty_<12 hexadecimal digits>"):
        register_admin_token(world.database, given(tmp_path, text), world.clock())


def test_readable_admin_token_file_is_rejected(world: World, tmp_path: Path) -> None:
    path = given(tmp_path, new_user_token())
    path.chmod(0o640)
    with pytest.raises(ServiceError, match="chmod 600"):
        register_admin_token(world.database, path, world.clock())
