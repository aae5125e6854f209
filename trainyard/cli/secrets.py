"""`trainyard secrets`: values for the ranks of your jobs that no spec contains."""

import sys
from getpass import getpass
from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.completion import complete_secret
from trainyard.cli.confirm import confirm_deletion
from trainyard.cli.errors import UsageError, print_note, show_help
from trainyard.cli.output import format_age, print_deleted, print_error, print_json, print_list
from trainyard.client import Client
from trainyard.client.errors import NotFoundError
from trainyard.contract.spec.environment import NAMES_FOR_EVERYBODY, is_common_secret_name

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)


@app.command("set")
def set_secret(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment variable.")],
    as_json: JsonOption = False,
) -> None:
    """Store a secret or replace its value, which is read from a prompt or from the standard input.

    A spec lists the names that its ranks need: `environment.secrets: [HF_TOKEN]`. Without the code role it may list
    names that end in _TOKEN, _SECRET, _PASSWORD, _API_KEY, _ACCESS_KEY or _ACCESS_KEY_ID, names that begin with APP_,
    and the names that docs/security.md lists.

    Example: trainyard secrets set HF_TOKEN
    """
    value = _read_value(name)
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError(f"the value is empty; pass it on standard input: trainyard secrets set {name} < FILE")
    with make_client(ctx) as client:
        stored = client.set_secret(name, value)
        if not is_common_secret_name(name) and not client.whoami().may_run_code:
            print_note(f"a spec of yours may not list {name} unless an administrator allows it: {NAMES_FOR_EVERYBODY}")
    if as_json:
        print_json(stored)
    else:
        print_error(f"stored secret {stored.name}")


def _read_value(name: str) -> str:
    try:
        return getpass(f"{name}: ") if _is_interactive() else sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise UsageError("the value is not UTF-8 text; encode it, for example with base64") from None


def _is_interactive() -> bool:
    return sys.stdin.isatty()


UserOption = Annotated[str | None, typer.Option("--user", metavar="USER", help="Administrators: secrets of this user.")]


@app.command("list")
def list_secrets(ctx: typer.Context, user: UserOption = None, as_json: JsonOption = False) -> None:
    """List your secrets, without their values.

    Example: trainyard secrets list
    """
    with make_client(ctx) as client:
        listed = client.secrets(user=user)
    headings = ("NAME", "CREATED", "CHANGED")
    print_list(
        listed,
        headings,
        lambda secret: (secret.name, format_age(secret.created_at), format_age(secret.updated_at)),
        as_json=as_json,
        empty_message=f"{user} has no secrets" if user else "you have no secrets",
    )


@app.command("delete")
def delete(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=complete_secret, help="Name from `trainyard secrets list`."),
    ] = None,
    user: UserOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all secrets, such as those of USER.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a secret. Jobs that name it and start later fail.

    Example: trainyard secrets delete HF_TOKEN
    """
    if (name is None) != everything:
        raise UsageError("name one secret, or use --all")
    with make_client(ctx) as client:
        names = [name] if name is not None else _all_names(client, user)
        is_own = everything and user is None
        if is_own and not yes and not as_json and not confirm_deletion(f"delete all your secrets: {', '.join(names)}?"):
            return
        for secret_name in names:
            client.delete_secret(secret_name, user=user)
            print_deleted(f"{user}'s secret" if user else "secret", secret_name, "deleted", as_json=as_json)


def _all_names(client: Client, user: str | None) -> list[str]:
    names = [secret.name for secret in client.secrets(user=user)]
    if not names:
        raise NotFoundError(f"{user} has no secrets" if user else "you have no secrets", code="no_secrets")
    return names
