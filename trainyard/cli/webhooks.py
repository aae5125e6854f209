"""`trainyard webhooks`: who is told of changes of status."""

from typing import Annotated

import typer

from trainyard.cli.completing import complete_status, complete_webhook
from trainyard.cli.failures import help_alone
from trainyard.cli.output import age, complain, emit, gone, say, show_all
from trainyard.cli.session import JsonOption, client_of
from trainyard.contract.wire.access import DeliveryResource, WebhookResource

app = typer.Typer(
    help="Have a server told of changes of status.",
    callback=help_alone,
    invoke_without_command=True,
    rich_markup_mode=None,
)

WebhookArgument = Annotated[
    str,
    typer.Argument(metavar="ID", autocompletion=complete_webhook, help="As `trainyard webhooks list` has it."),
]


@app.command("create")
def create(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where messages go: `https://...`")],
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", autocompletion=complete_status, help="Only changes to this one; give it several times for more."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all-jobs", help="Everyone's jobs, not only yours.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a webhook, and print its secret, shown this once.

    The service then POSTs to the URL when a job changes its status, and signs what it sends with the secret.

    Example: trainyard webhooks create https://example.org/hook
    """
    with client_of(ctx) as client:
        made = client.create_webhook(url, statuses=status or (), jobs="all" if every else "own")
    if as_json:
        emit(made)
    else:
        complain(f"webhook {made.id}; its secret is not shown again:")
        say(made.secret)


@app.command("list")
def list_webhooks(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List webhooks.

    Example: trainyard webhooks list
    """
    with client_of(ctx) as client:
        found = list(client.webhooks())
    headings = ("ID", "URL", "STATUSES", "JOBS", "OWNER", "STATE")
    show_all(found, headings, _row, as_json=as_json, none="no webhooks yet", spare=("OWNER", "JOBS"))


def _row(hook: WebhookResource) -> tuple[str, ...]:
    state = "disabled" if hook.disabled_at else f"{hook.failures} failures" if hook.failures else "good"
    return hook.id, hook.url, ", ".join(hook.statuses) or "any", hook.jobs, hook.created_by, state


@app.command("delete")
def delete(ctx: typer.Context, webhook_id: WebhookArgument, as_json: JsonOption = False) -> None:
    """Delete a webhook, with what it was not told yet.

    Example: trainyard webhooks delete whk_01...
    """
    with client_of(ctx) as client:
        client.delete_webhook(webhook_id)
    gone("webhook", webhook_id, "deleted", as_json=as_json)


@app.command("test")
def send_test(ctx: typer.Context, webhook_id: WebhookArgument, as_json: JsonOption = False) -> None:
    """Send a test message; `deliveries` shows what became of it.

    Example: trainyard webhooks test whk_01...
    """
    with client_of(ctx) as client:
        delivery = client.test_webhook(webhook_id)
    if as_json:
        emit(delivery)
    else:
        say(f"message {delivery.id} is on its way: trainyard webhooks deliveries {webhook_id}")


@app.command("deliveries")
def deliveries(ctx: typer.Context, webhook_id: WebhookArgument, as_json: JsonOption = False) -> None:
    """Show what a webhook was told, or is to be, newest first.

    Example: trainyard webhooks deliveries whk_01...
    """
    with client_of(ctx) as client:
        found = list(client.deliveries(webhook_id))
    headings = ("ID", "TYPE", "JOB", "CREATED", "STATE", "ATTEMPTS", "ERROR")
    show_all(
        found,
        headings,
        _told,
        as_json=as_json,
        none="nothing was told yet",
        spare=("ID", "TYPE", "ATTEMPTS", "CREATED"),
    )


def _told(one: DeliveryResource) -> tuple[str, ...]:
    job, told = one.job_id or "-", age(one.created_at)
    return one.id, one.type, job, told, one.state, str(one.attempts), one.error or ""
