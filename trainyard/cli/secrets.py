"""`trainyard secrets`: values for the ranks of your jobs that no spec contains."""

import sys
from getpass import getpass
from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.completion import complete_secret
from trainyard.cli.errors import UsageError, show_help
from trainyard.cli.output import format_age, print_deleted, print_error, print_json, print_list

app = typer.Typer(
    help="Store values that your jobs need, such as HF_TOKEN.",
    callback=show_help,
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.command("set")
def set_secret(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment variable.")],
    as_json: JsonOption = False,
) -> None:
    """Store a secret or replace its value, which is read from a prompt or from the standard input.

    A spec lists the names that its ranks need: `environment.secrets: [HF_TOKEN]`.

    Example: trainyard secrets set HF_TOKEN
    """
    value = getpass(f"{name}: ") if _is_interactive() else sys.stdin.read()
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError(f"the value is empty; pass it on standard input: trainyard secrets set {name} < FILE")
    with make_client(ctx) as client:
        stored = client.set_secret(name, value)
    if as_json:
        print_json(stored)
    else:
        print_error(f"stored secret {stored.name}")


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
    as_json: JsonOption = False,
) -> None:
    """Delete a secret. Jobs that name it and start later fail.

    Example: trainyard secrets delete HF_TOKEN
    """
    if (name is None) != everything:
        raise UsageError("name one secret, or use --all")
    with make_client(ctx) as client:
        names = [name] if name is not None else [secret.name for secret in client.secrets(user=user)]
        for secret_name in names:
            client.delete_secret(secret_name, user=user)
            print_deleted("secret", secret_name, "deleted", as_json=as_json)
