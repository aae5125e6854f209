"""`trainyard tokens`: create, list and revoke API tokens, and link users to those who sign in."""

from datetime import datetime
from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.completion import complete_token
from trainyard.cli.errors import UsageError, show_help
from trainyard.cli.output import format_age, print_deleted, print_error, print_json, print_line, print_list
from trainyard.client import NotFoundError
from trainyard.contract.wire.access import TOKEN_DAYS, TokenResource
from trainyard.contract.wire.sign_in import OidcUserResource

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user or program that owns its jobs.")],
    role: Annotated[
        str, typer.Option("--role", help="`admin`, `user` (changes own jobs) or `viewer` (read-only).")
    ] = "user",
    days: Annotated[
        int | None, typer.Option("--days", min=1, help=f"Days until it expires; default: {TOKEN_DAYS}.")
    ] = None,
    no_expiry: Annotated[bool, typer.Option("--no-expiry", help="It never expires.")] = False,
    may_run_code: Annotated[
        bool,
        typer.Option("--may-run-code", help="Allow `custom` and `script` jobs, which run as the service's account."),
    ] = False,
    project: Annotated[
        str | None,
        typer.Option("--project", help="A created project: the token is valid for its jobs and for nothing else."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token and print its secret, which is shown only once.

    Example: trainyard tokens create anna --role user
    """
    if no_expiry and days:
        raise UsageError("use only one of --days and --no-expiry")
    lifetime = None if no_expiry else days or TOKEN_DAYS
    with make_client(ctx) as client:
        made = client.create_token(
            name, role=role, expires_in_days=lifetime, may_run_code=may_run_code, project=project
        )
    if as_json:
        print_json(made)
    else:
        expiry = _format_expiry(made.expires_at) or ", which never expires"
        only = f" for the project {made.project} alone" if made.project else ""
        print_error(f"token {made.id} for {made.name} ({made.role}){only}{expiry}; the secret is shown only once:")
        print_line(made.token)


@app.command("list")
def list_tokens(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List all tokens, without their secrets.

    Example: trainyard tokens list
    """
    with make_client(ctx) as client:
        listed = list(client.tokens())
    print_list(
        listed,
        ("ID", "NAME", "ROLE", "CODE", "CREATED", "LAST USED", "STATE"),
        _row,
        as_json=as_json,
        optional=("CREATED", "CODE"),
    )


def _row(token: TokenResource) -> tuple[str, ...]:
    code, used = (
        "yes" if token.may_run_code else "no",
        format_age(token.last_used_at) if token.last_used_at else "never",
    )
    return token.id, token.name, token.role, code, format_age(token.created_at), used, _state(token)


@app.command("revoke")
def revoke(
    ctx: typer.Context,
    token_id: Annotated[
        str,
        typer.Argument(metavar="ID", autocompletion=complete_token, help="Id from `trainyard tokens list`."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Revoke a token.

    Example: trainyard tokens revoke 0123456789ab
    """
    with make_client(ctx) as client:
        try:
            client.revoke_token(token_id)
        except NotFoundError:
            ids = [one.id for one in client.tokens() if one.name == token_id and one.revoked_at is None]
            if not ids:
                raise
            raise UsageError(f"{token_id!r} is a name; use the id of one of its tokens: {', '.join(ids)}") from None
    print_deleted("token", token_id, "revoked", as_json=as_json)


@app.command("link")
def link(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user, and of the Unix account.")],
    subject: Annotated[
        str | None,
        typer.Option("--subject", help="Let this subject (`sub`) of the OpenID provider sign in as NAME instead."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Let a Unix account, or a subject of a provider, sign in as NAME.

    Example: trainyard tokens link anna
    """
    with make_client(ctx) as client:
        if subject is not None:
            _print_provider_user(client.set_oidc_user(name, subject=subject), as_json=as_json)
            return
        linked = client.link_unix_user(name)
    if as_json:
        print_json(linked)
    else:
        print_line(f"the user {linked.name} is the Unix account {linked.name} (uid {linked.uid})")


@app.command("disable")
def disable(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    as_json: JsonOption = False,
) -> None:
    """Refuse a user of the provider at sign-in, and end the sessions.

    Tokens that an administrator created for the user stay.

    Example: trainyard tokens disable anna
    """
    with make_client(ctx) as client:
        _print_provider_user(client.set_oidc_user(name, disabled=True), as_json=as_json)


@app.command("enable")
def enable(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    as_json: JsonOption = False,
) -> None:
    """Let a disabled user of the provider sign in again.

    Example: trainyard tokens enable anna
    """
    with make_client(ctx) as client:
        _print_provider_user(client.set_oidc_user(name), as_json=as_json)


@app.command("subjects")
def list_subjects(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the users of the provider, with their subjects.

    Example: trainyard tokens subjects
    """
    with make_client(ctx) as client:
        listed = list(client.oidc_users())
    print_list(listed, ("NAME", "SUBJECT", "ISSUER", "LAST SIGN-IN", "STATE"), _provider_row, as_json=as_json)


def _provider_row(user: OidcUserResource) -> tuple[str, ...]:
    used = format_age(user.signed_in_at) if user.signed_in_at else "never"
    return user.name, user.subject, user.issuer, used, "disabled" if user.disabled_at else "enabled"


def _print_provider_user(user: OidcUserResource, *, as_json: bool) -> None:
    if as_json:
        print_json(user)
    else:
        state = "is disabled" if user.disabled_at else "can sign in"
        print_line(f"the user {user.name} is the subject {user.subject} of {user.issuer}, and {state}")


@app.command("whoami")
def whoami(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show the token in use and its permissions.

    Example: trainyard tokens whoami
    """
    with make_client(ctx) as client:
        own = client.whoami()
    if as_json:
        print_json(own)
    else:
        code = "permitted" if own.may_run_code else "not permitted"
        only = f" for the project {own.project} alone" if own.project else ""
        print_line(
            f"{own.name} ({own.role}), token {own.id}{only}{_format_expiry(own.expires_at)}; running code is {code}"
        )


def _state(token: TokenResource) -> str:
    if token.revoked_at is not None:
        return f"revoked {format_age(token.revoked_at)}"
    if token.expires_at is None:
        return "valid"
    passed = token.expires_at <= datetime.now(token.expires_at.tzinfo)
    return f"expired {format_age(token.expires_at)}" if passed else f"valid until {token.expires_at:%Y-%m-%d}"


def _format_expiry(time: datetime | None) -> str:
    return f", valid until {time:%Y-%m-%d %H:%M}Z" if time else ""
