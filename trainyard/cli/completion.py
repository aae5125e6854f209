"""Shell completion of ids, names, presets and statuses; without a service it suggests nothing."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

import typer

from trainyard.cli.output import one_line
from trainyard.client import Client
from trainyard.contract.wire.jobs import JobStatus

_LIMIT = 50
_SHELL_SAFE = re.compile(r"\w[\w.:@+/-]*")
"""A suggestion that needs no quotes: the shell inserts suggestions unchanged, and would run `$(...)` in a name."""

Items = Iterable[tuple[str, str]]
"""Suggestions, each with its description."""

Completion = Callable[[typer.Context, str], list[tuple[str, str]]]


def complete_from(list_items: Callable[[Client], Items]) -> Completion:
    """Return a completion function for the suggestions that `listed` requests from the service."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        try:
            with (ctx.obj or Client)() as client:
                return [
                    (item, one_line(description))
                    for item, description in list_items(client)
                    if item.startswith(incomplete) and _SHELL_SAFE.fullmatch(item)
                ]
        except Exception:
            return []

    return complete


def _jobs(client: Client) -> Iterator[tuple[str, str]]:
    """Yield the ids of the newest jobs, then their names."""
    newest = list(client.jobs(limit=_LIMIT))
    yield from ((job.id, f"{job.name}, {job.status}") for job in newest)
    yield from _names((job.name for job in newest), "the newest job of this name")


def _sweeps(client: Client) -> Iterator[tuple[str, str]]:
    newest = [sweep for sweep, _ in zip(client.sweeps(), range(_LIMIT), strict=False)]
    yield from ((sweep.id, f"{sweep.name}, {sweep.size} jobs") for sweep in newest)
    yield from _names((sweep.name for sweep in newest), "the newest sweep of this name")


def _names(names: Iterable[str], meaning: str) -> Iterator[tuple[str, str]]:
    return ((name, meaning) for name in dict.fromkeys(names))


complete_job = complete_from(_jobs)
complete_sweep = complete_from(_sweeps)
complete_preset = complete_from(lambda client: ((one.name, one.description) for one in client.templates()))
complete_model = complete_from(lambda client: ((one.name, one.description) for one in client.models()))
complete_project = complete_from(lambda client: ((one.name, one.description) for one in client.projects()))
complete_secret = complete_from(lambda client: ((one.name, "") for one in client.secrets()))
complete_file = complete_from(lambda client: ((one.id, one.name) for one in client.data_files()))
complete_token = complete_from(lambda client: ((one.id, one.name) for one in client.tokens() if one.revoked_at is None))
complete_webhook = complete_from(lambda client: ((one.id, one.url) for one in client.webhooks()))


def complete_spec(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the presets and the YAML files in the current folder."""
    files = [(str(path), "a file") for path in sorted(Path().glob(f"{incomplete}*.y*ml"))]
    return files + complete_preset(ctx, incomplete)


def complete_status(incomplete: str) -> list[str]:
    return [status for status in get_args(JobStatus) if status.startswith(incomplete)]
