"""Sign-in with the programs of munge and a munged of the test's own, as the account `mail` of this machine."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from service.auth.munge import CredentialError, UnmungeProgram
from service.core.errors import UnavailableError
from service.diagnostics.checks import munge as munge_check
from tests.support.munge import running_munged
from tests.support.packages import install
from tests.support.wait import wait_until
from tests.support.world import World
from trainyard.cli.app import app
from trainyard.client import Client
from trainyard.client.sign_ins import load_sign_ins, sign_ins_file
from trainyard.contract.wire.sign_in import sign_in_message

pytestmark = [
    pytest.mark.databases("sqlite"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make credentials of another account"),
]

USER = "mail"


@pytest.fixture(scope="module")
def munged() -> Iterator[Path]:
    if shutil.which("munge") is None:
        install("munge", "munge")
    # The folders of pytest are closed to other accounts.
    with tempfile.TemporaryDirectory(prefix="munge-test-") as folder:
        Path(folder).chmod(0o755)
        with running_munged(Path(folder)) as running:
            yield running


@pytest.fixture
def world(database_url: str, tmp_path: Path, munged: Path) -> World:
    return World(database_url, tmp_path / "state", munge_role="user", munge_min_uid=1, munge_socket=munged)


def munge(socket_: Path, message: bytes, *, user: str = USER, ttl: int = 60) -> str:
    """Return a credential that an account of this machine makes."""
    account = pwd.getpwnam(user)
    command = ["munge", f"--socket={socket_}", f"--ttl={ttl}"]
    identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return subprocess.run(command, input=message, capture_output=True, check=True, **identity).stdout.decode().strip()


def message(world: World, nonce: str) -> bytes:
    return sign_in_message(world.settings.service_url, socket.gethostname(), nonce)


def nonce_of(client: TestClient) -> str:
    return str(client.post("/v1/sign-in/nonces").json()["nonce"])


def send(client: TestClient, nonce: str, credential: str) -> tuple[int, str]:
    answer = client.post("/v1/sign-in/munge", json={"nonce": nonce, "credential": credential})
    body = answer.json()
    return answer.status_code, body["name"] if answer.is_success else body["error"]["code"]


def test_unix_account_signs_in_and_a_replay_is_refused(world: World, munged: Path) -> None:
    client = world.new_client(None)
    nonce = nonce_of(client)
    credential = munge(munged, message(world, nonce))
    assert send(client, nonce, credential) == (201, USER)
    assert send(client, nonce, credential) == (401, "unknown_nonce")
    assert send(client, nonce_of(client), credential) == (401, "replayed_credential")


def test_root_and_other_messages_are_refused(world: World, munged: Path) -> None:
    client = world.new_client(None)
    nonce = nonce_of(client)
    assert send(client, nonce, munge(munged, b"slurm says hello\n")) == (401, "wrong_service")
    assert send(client, nonce, munge(munged, b"")) == (401, "wrong_service")
    elsewhere = sign_in_message("https://elsewhere.example", "host", nonce)
    assert send(client, nonce, munge(munged, elsewhere)) == (401, "wrong_service")
    assert send(client, nonce, munge(munged, message(world, nonce), user="root")) == (403, "account_refused")


def test_nonce_of_one_replica_works_once_at_another(world: World, munged: Path, tmp_path: Path) -> None:
    settings = world.settings.model_dump(include={"munge_role", "munge_min_uid", "munge_socket"})
    other = World(str(world.database.url), tmp_path / "other", **settings)
    nonce = nonce_of(world.new_client(None))
    first, second = (munge(munged, message(world, nonce)) for _ in range(2))
    assert send(other.new_client(None), nonce, first) == (201, USER)
    assert send(world.new_client(None), nonce, second) == (401, "unknown_nonce")
    other.database.dispose()


def test_expired_credential_is_refused(munged: Path) -> None:
    credential = munge(munged, b"x", ttl=1)
    made_at = time.time()
    wait_until(lambda: time.time() > made_at + 2, 10, "the credential to expire")
    with pytest.raises(CredentialError) as caught:
        UnmungeProgram(munged).decode(credential)
    assert caught.value.code == "expired_credential"


def test_credential_of_another_cluster_is_refused(munged: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="munge-test-") as folder:
        Path(folder).chmod(0o755)
        with running_munged(Path(folder)) as other:
            credential = munge(other, b"x")
    with pytest.raises(CredentialError) as caught:
        UnmungeProgram(munged).decode(credential)
    assert caught.value.code == "invalid_credential"


def test_doctor_makes_and_decodes_a_credential(world: World) -> None:
    finding = munge_check(world.settings)
    assert (finding.state, finding.fix) == ("warning", "set TRAINYARD_PUBLIC_URL to the URL that users give to login")
    public = world.settings.model_copy(update={"public_url": "https://yard.example"})
    assert munge_check(public).state == "ok"
    assert "no-such-group" in munge_check(public.model_copy(update={"munge_group": "no-such-group"})).message
    assert munge_check(public.model_copy(update={"munge_socket": Path("/none")})).state == "error"
    assert munge_check(public.model_copy(update={"munge_role": ""})).state == "ok"


def test_munged_that_does_not_run_is_unavailable(tmp_path: Path, munged: Path) -> None:
    credential = munge(munged, b"x")
    for decoder in (UnmungeProgram(tmp_path / "none"), UnmungeProgram(munged, program="no-such-program")):
        with pytest.raises(UnavailableError) as caught:
            decoder.decode(credential)
        assert caught.value.code == "munge"


def test_login_stores_a_token_and_logout_revokes_it(
    world: World, munged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, program = pwd.getpwnam(USER), shutil.which("munge")
    stand_in = tmp_path / "bin" / "munge"
    stand_in.parent.mkdir()
    identity = f"--reuid={account.pw_uid} --regid={account.pw_gid} --clear-groups"
    stand_in.write_text(f'#!/bin/sh\nexec setpriv {identity} {program} "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TRAINYARD_MUNGE_SOCKET", str(munged))
    monkeypatch.setenv("TRAINYARD_URL", world.settings.service_url)

    def answer(request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        got = world.new_client(None).request(request.method, request.url.path, headers=headers, content=request.content)
        return httpx.Response(got.status_code, headers=dict(got.headers), content=got.content)

    def client(url: str | None = None, token: str | None = None) -> Client:
        return Client(url, token, transport=httpx.MockTransport(answer))

    done = CliRunner().invoke(app, ["login"], obj=client)
    assert done.exit_code == 0, done.output
    assert f"as {USER} (user)" in done.output
    token = next(iter(load_sign_ins().services.values())).token
    assert token not in done.output
    assert sign_ins_file().stat().st_mode & 0o777 == 0o600
    assert world.new_client(token).get("/v1/jobs").status_code == 200
    done = CliRunner().invoke(app, ["logout"], obj=client)
    assert done.exit_code == 0, done.output
    assert load_sign_ins().services == {}
    assert world.new_client(token).get("/v1/jobs").status_code == 401
