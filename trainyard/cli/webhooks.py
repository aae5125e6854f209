"""`trainyard webhooks`: notifications of status changes."""

from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.completion import complete_status, complete_webhook
from trainyard.cli.errors import show_help
from trainyard.cli.output import format_age, print_deleted, print_error, print_json, print_line, print_list
from trainyard.contract.wire.access import DeliveryResource, WebhookFormat, WebhookResource

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)

WebhookArgument = Annotated[
    str,
    typer.Argument(metavar="ID", autocompletion=complete_webhook, help="Id from `trainyard webhooks list`."),
]


@app.command("create")
def create(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Target of the messages: `https://...`")],
    status: Annotated[
        list[str] | None,
        typer.Option("--status", autocompletion=complete_status, help="Only changes to this status; can be repeated."),
    ] = None,
    every: Annotated[bool, typer.Option("--all-jobs", help="Jobs of all users, not only yours.")] = False,
    form: Annotated[
        WebhookFormat | None,
        typer.Option("--format", help="Form of the messages: `slack` sends a text with a link, as Slack takes it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a webhook and print its secret, which is shown only once.

    The service sends a POST request to the URL when a job's status changes, signed with the secret.

    Example: trainyard webhooks create https://example.org/hook
    """
    with make_client(ctx) as client:
        made = client.create_webhook(url, statuses=status or (), jobs="all" if every else "own", format=form)
    if as_json:
        print_json(made)
    else:
        print_error(f"webhook {made.id}; its secret is shown only once:")
        print_line(made.secret)


@app.command("list")
def list_webhooks(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List webhooks.

    Example: trainyard webhooks list
    """
    with make_client(ctx) as client:
        listed = list(client.webhooks())
    headings = ("ID", "URL", "STATUSES", "JOBS", "OWNER", "STATE")
    print_list(listed, headings, _row, as_json=as_json, empty_message="no webhooks yet", optional=("OWNER", "JOBS"))


def _row(hook: WebhookResource) -> tuple[str, ...]:
    state = "disabled" if hook.disabled_at else f"{hook.failures} failures" if hook.failures else "active"
    return hook.id, hook.url, ", ".join(hook.statuses) or "any", hook.jobs, hook.created_by, state


@app.command("delete")
def delete(ctx: typer.Context, webhook_id: WebhookArgument, as_json: JsonOption = False) -> None:
    """Delete a webhook and its pending deliveries.

    Example: trainyard webhooks delete whk_01...
    """
    with make_client(ctx) as client:
        client.delete_webhook(webhook_id)
    print_deleted("webhook", webhook_id, "deleted", as_json=as_json)


@app.command("test")
def send_test(ctx: typer.Context, webhook_id: WebhookArgument, as_json: JsonOption = False) -> None:
    """Send a test message; `deliveries` shows the result.

    Example: trainyard webhooks test whk_01...
    """
    with make_client(ctx) as client:
        delivery = client.test_webhook(webhook_id)
    if as_json:
        print_json(delivery)
    else:
        print_line(f"test message {delivery.id} queued; see: trainyard webhooks deliveries {webhook_id}")


@app.command("deliveries")
def deliveries(ctx: typer.Context, webhook_id: WebhookArgument, as_json: JsonOption = False) -> None:
    """List a webhook's deliveries, newest first.

    Example: trainyard webhooks deliveries whk_01...
    """
    with make_client(ctx) as client:
        listed = list(client.deliveries(webhook_id))
    headings = ("ID", "TYPE", "JOB", "CREATED", "STATE", "ATTEMPTS", "ERROR")
    print_list(
        listed,
        headings,
        _delivery_row,
        as_json=as_json,
        empty_message="no deliveries yet",
        optional=("ID", "TYPE", "ATTEMPTS", "CREATED"),
    )


def _delivery_row(delivery: DeliveryResource) -> tuple[str, ...]:
    job, created = delivery.job_id or "-", format_age(delivery.created_at)
    return delivery.id, delivery.type, job, created, delivery.state, str(delivery.attempts), delivery.error or ""
