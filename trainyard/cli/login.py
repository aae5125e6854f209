"""`trainyard login` and `trainyard logout`: sign in as the Unix account of this shell, or by a browser."""

import os
import shutil
import socket
import subprocess
import sys
from getpass import getpass
from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.errors import UsageError, print_note
from trainyard.cli.output import print_json, print_line
from trainyard.client import AuthenticationError, Client, ServerError, TrainyardError
from trainyard.client.connection import default_url
from trainyard.client.errors import SettingError
from trainyard.client.sign_ins import load_sign_ins, sign_ins_file
from trainyard.contract.wire.access import NewTokenResource
from trainyard.contract.wire.sign_in import sign_in_message

UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="URL of the service; default: TRAINYARD_URL.")
]
_TTL_SECONDS = 60
_TIMEOUT_SECONDS = 20.0


BrowserOption = Annotated[
    bool, typer.Option("--browser", help="Sign in with a browser, by the provider of your organisation.")
]


def login(
    ctx: typer.Context, url: UrlOption = None, by_browser: BrowserOption = False, as_json: JsonOption = False
) -> None:
    """Sign in with munge on the cluster, or with a browser; later commands use the token.

    Example: trainyard login --url https://trainyard.example.org
    """
    with make_client(ctx, url) as client:
        made = _sign_in_by_browser(client) if by_browser else _sign_in_by_munge(client)
        if made.expires_at is None:
            raise ServerError("the service returned a token that does not expire")
        signed_in = load_sign_ins().with_sign_in(
            client.url, token=made.token, name=made.name, expires_at=made.expires_at
        )
    signed_in.save()
    if os.environ.get("TRAINYARD_TOKEN", "").strip():
        print_note("TRAINYARD_TOKEN is set, and commands use it instead of this sign-in")
    if as_json:
        print_json(made.model_dump(mode="json", exclude={"token"}) | {"url": client.url})
    else:
        until = f"{made.expires_at:%Y-%m-%d %H:%M}Z"
        print_line(f"signed in to {client.url} as {made.name} ({made.role}), until {until}")


def logout(ctx: typer.Context, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """End the sign-in: revoke its token and remove it from this account's files.

    Example: trainyard logout
    """
    target = default_url(url)
    known = load_sign_ins().at(target)
    if known is None:
        raise UsageError(f"{sign_ins_file()} has no sign-in at {target}")
    revoked = True
    try:
        with make_client(ctx, target, known.token) as client:
            client.revoke_own_token()
    except AuthenticationError:
        pass  # It is expired or revoked.
    except TrainyardError as error:
        revoked = False
        print_note(f"the token could not be revoked and stays valid until {known.expires_at}: {error.message}")
    load_sign_ins().without(target).save()
    if as_json:
        print_json({"object": "signed_out", "url": target, "name": known.name, "revoked": revoked})
    else:
        print_line(f"signed out of {target} as {known.name}")


def _sign_in_by_munge(client: Client) -> NewTokenResource:
    nonce = client.create_sign_in_nonce().nonce
    credential = _make_credential(sign_in_message(client.url, socket.gethostname(), nonce))
    return client.sign_in_with_munge(nonce, credential)


def _sign_in_by_browser(client: Client) -> NewTokenResource:
    """Exchange the code that a browser shows, which may run on another machine."""
    print_note(f"open {client.url}/sign-in/oidc/code in a browser, and enter the code that it shows")
    code = getpass("Code: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not code.strip():
        raise UsageError("enter the code that the browser shows")
    return client.exchange_sign_in_code(code.strip())


def _make_credential(message: bytes) -> str:
    """Return a credential by which this account states a message. `TRAINYARD_MUNGE_SOCKET` names munged's socket.

    Raises:
        SettingError: this machine has no munge, or it does not work.
    """
    program = shutil.which("munge")
    if program is None:
        raise SettingError(
            "the program `munge` is not installed here; sign in on a machine of the cluster, or set TRAINYARD_TOKEN "
            "to a token of an administrator; with a provider of your organisation: trainyard login --browser"
        )
    given = os.environ.get("TRAINYARD_MUNGE_SOCKET")
    options = [f"--ttl={_TTL_SECONDS}", *([f"--socket={given}"] if given else [])]
    try:
        done = subprocess.run(
            [program, *options], input=message, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"munge failed: {error}") from None
    if done.returncode != 0:
        raise SettingError(f"munge failed: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout.decode("ascii", errors="replace").strip()
