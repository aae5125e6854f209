"""`trainyard audit`: changes with their author, time and address."""

from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, SinceOption, UntilOption, make_client
from trainyard.cli.output import print_list
from trainyard.contract.wire.access import AuditResource


def audit(
    ctx: typer.Context,
    actor: Annotated[str | None, typer.Option("--by", "--actor", help="Only changes by this user.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="Only this action, such as `cancel_job`.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Only this target, such as a job's id.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="`done`, `refused` or `failed`.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of entries.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the audit log, newest first. Requires an administrator's token.

    Example: trainyard audit --since 2h --by ada
    """
    with make_client(ctx) as client:
        entries = list(
            client.audit(
                limit=limit,
                actor=actor,
                action=action,
                target=target,
                outcome=outcome,
                created_after=since,
                created_before=until,
            )
        )
    headings = ("TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME", "ADDRESS", "REQUEST")
    print_list(
        entries,
        headings,
        _row,
        as_json=as_json,
        empty_message="no matching audit entries",
        optional=("REQUEST", "ADDRESS"),
    )


def _row(entry: AuditResource) -> tuple[str, ...]:
    when, where = f"{entry.created_at:%Y-%m-%d %H:%M:%S}Z", (_addresses(entry), entry.request_id or "-")
    return when, entry.actor, entry.action, _target(entry), _outcome(entry), *where


def _target(entry: AuditResource) -> str:
    """Return the changed object, with its user if an administrator named another user."""
    parts = (entry.target, entry.detail.get("user"))
    return " of ".join(str(part) for part in parts if part) or "-"


def _addresses(entry: AuditResource) -> str:
    """Return the addresses of an entry; an entry that counts several requests may have several."""
    return entry.address or ", ".join(entry.detail.get("addresses", ())) or "-"


def _outcome(entry: AuditResource) -> str:
    count = entry.detail.get("count")
    times = "" if count is None else f", {count} request{'' if count == 1 else 's'}"
    return entry.outcome + (f" ({entry.status})" if entry.status else "") + times
