"""`trainyard tokens`: who may use the service, and as what."""

from datetime import datetime
from typing import Annotated

import typer

from trainyard.cli.completing import complete_token
from trainyard.cli.failures import UsageError, help_alone
from trainyard.cli.output import age, complain, emit, gone, say, show_all
from trainyard.cli.session import JsonOption, client_of
from trainyard.client import NotFoundError
from trainyard.contract.wire.access import TokenResource

app = typer.Typer(
    help="Make, list and revoke API tokens.", callback=help_alone, invoke_without_command=True, rich_markup_mode=None
)


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the person or program; jobs belong to names.")],
    role: Annotated[
        str, typer.Option("--role", help="`admin`, `user` (changes their own jobs) or `viewer` (only sees).")
    ] = "user",
    days: Annotated[int | None, typer.Option("--days", min=1, help="Until it expires; default: never.")] = None,
    may_run_code: Annotated[
        bool,
        typer.Option("--may-run-code", help="Allow `custom` and `script` jobs, which run as the service's account."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a token, and print its secret, which is shown this once.

    Example: trainyard tokens create anna --role user
    """
    with client_of(ctx) as client:
        made = client.create_token(name, role=role, expires_in_days=days, may_run_code=may_run_code)
    if as_json:
        emit(made)
    else:
        complain(f"token {made.id} for {made.name} ({made.role}){_until(made.expires_at)}; it is not shown again:")
        say(made.token)


@app.command("list")
def list_tokens(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List all tokens, without their secrets.

    Example: trainyard tokens list
    """
    with client_of(ctx) as client:
        found = list(client.tokens())
    show_all(
        found,
        ("ID", "NAME", "ROLE", "CODE", "CREATED", "LAST USED", "STATE"),
        _row,
        as_json=as_json,
        spare=("CREATED", "CODE"),
    )


def _row(token: TokenResource) -> tuple[str, ...]:
    code, used = "yes" if token.may_run_code else "no", age(token.last_used_at) if token.last_used_at else "never"
    return token.id, token.name, token.role, code, age(token.created_at), used, _state(token)


@app.command("revoke")
def revoke(
    ctx: typer.Context,
    token_id: Annotated[
        str,
        typer.Argument(metavar="ID", autocompletion=complete_token, help="As `trainyard tokens list` has it."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Revoke a token; the next request with it is refused.

    Example: trainyard tokens revoke 0123456789ab
    """
    with client_of(ctx) as client:
        try:
            client.revoke_token(token_id)
        except NotFoundError:
            theirs = [one.id for one in client.tokens() if one.name == token_id and one.revoked_at is None]
            if not theirs:
                raise
            raise UsageError(f"{token_id!r} is a name; say which of its tokens: {', '.join(theirs)}") from None
    gone("token", token_id, "revoked", as_json=as_json)


@app.command("whoami")
def whoami(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show which token this command line uses, and what it may do.

    Example: trainyard tokens whoami
    """
    with client_of(ctx) as client:
        own = client.whoami()
    if as_json:
        emit(own)
    else:
        code = "may" if own.may_run_code else "may not"
        say(f"{own.name} ({own.role}), token {own.id}{_until(own.expires_at)}; it {code} run code of its own")


def _state(token: TokenResource) -> str:
    if token.revoked_at is not None:
        return f"revoked {age(token.revoked_at)}"
    if token.expires_at is None:
        return "good"
    passed = token.expires_at <= datetime.now(token.expires_at.tzinfo)
    return f"expired {age(token.expires_at)}" if passed else f"good until {token.expires_at:%Y-%m-%d}"


def _until(moment: datetime | None) -> str:
    return f", good until {moment:%Y-%m-%d %H:%M}Z" if moment else ""
