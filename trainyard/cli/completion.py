"""What the shell is offered for a word that is being typed. Nothing where there is no service to ask."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

import typer

from trainyard.client import Client
from trainyard.contract.wire.jobs import JobStatus

_LIMIT = 50

Items = Iterable[tuple[str, str]]
"""Each with what it stands for."""

Completion = Callable[[typer.Context, str], list[tuple[str, str]]]


def complete_from(listed: Callable[[Client], Items]) -> Completion:
    """Of what the service lists, the words that begin as the typed one."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        try:
            with (ctx.obj or Client)() as client:
                return [item for item in listed(client) if item[0].startswith(incomplete)]
        except Exception:
            return []

    return complete


def _jobs(client: Client) -> Iterator[tuple[str, str]]:
    """By id, then by name, of which each stands for its newest job."""
    newest = list(client.jobs(limit=_LIMIT))
    yield from ((job.id, f"{job.name}, {job.status}") for job in newest)
    yield from _names((job.name for job in newest), "the newest job of this name")


def _sweeps(client: Client) -> Iterator[tuple[str, str]]:
    newest = [sweep for sweep, _ in zip(client.sweeps(), range(_LIMIT), strict=False)]
    yield from ((sweep.id, f"{sweep.name}, {sweep.size} jobs") for sweep in newest)
    yield from _names((sweep.name for sweep in newest), "the newest sweep of this name")


def _names(names: Iterable[str], meaning: str) -> Iterator[tuple[str, str]]:
    return ((name, meaning) for name in dict.fromkeys(names) if " " not in name)


complete_job = complete_from(_jobs)
complete_sweep = complete_from(_sweeps)
complete_preset = complete_from(lambda client: ((one.name, one.description) for one in client.templates()))
complete_secret = complete_from(lambda client: ((one.name, "") for one in client.secrets()))
complete_token = complete_from(lambda client: ((one.id, one.name) for one in client.tokens() if one.revoked_at is None))
complete_webhook = complete_from(lambda client: ((one.id, one.url) for one in client.webhooks()))


def complete_spec(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The presets, and the YAML files here."""
    files = [(str(path), "a file") for path in sorted(Path().glob(f"{incomplete}*.y*ml"))]
    return files + complete_preset(ctx, incomplete)


def complete_status(incomplete: str) -> list[str]:
    return [status for status in get_args(JobStatus) if status.startswith(incomplete)]
