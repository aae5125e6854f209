"""What the routes of webhooks and their dispatcher share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from service.api.dependencies import AppState
from service.plugins.webhooks.host_lookups import HostLookups
from service.plugins.webhooks.service import Resolver

NAME = "webhooks"


def _do_nothing() -> None:
    """Notify nobody: no dispatcher runs in this process."""


@dataclass
class WebhookPart:
    """The shared part. Tests replace the resolver."""

    resolver: Resolver = field(default_factory=lambda: HostLookups().resolve)
    """Resolves the host names of webhooks."""
    notify: Callable[[], None] = _do_nothing
    """Wakes the dispatcher."""


def part_of(app_state: AppState) -> WebhookPart:
    """Return the part of a service."""
    part: WebhookPart = app_state.plugin_parts[NAME]
    return part
