"""What the routes of webhooks and their dispatcher share: the look-ups of hosts, and the notification."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.api.dependencies import AppState
from service.core.thread_slots import SlotsTakenError, ThreadSlots
from service.plugins.webhooks.service import Resolver

NAME = "webhooks"
_SECONDS = 3.0
"""Time limit of a look-up."""


class HostLookups:
    """Resolves names with the resolver of this machine.

    A look-up may last long after its caller stopped waiting, as nothing can end it. It counts until it ends, so that
    the slow names of one user use up their own share and not the share of others.
    """

    def __init__(self, *, each: int = 4, total: int = 32):
        """
        Args:
            each: Maximum number of look-ups in progress per user.
            total: Look-ups in progress of all users.
        """
        self._slots = ThreadSlots(each=each, total=total, seconds=_SECONDS, wait_seconds=0)

    def resolve(self, host: str, port: int, owner: str) -> Sequence[str]:
        """Return the addresses of a host, for a webhook of this user.

        Raises:
            OSError: The name is unknown, the resolver does not answer within 3 s, or too many look-ups are in progress.
        """
        try:
            answers = self._slots.call(owner, socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        except SlotsTakenError as error:
            whose = f" of webhooks of {owner}" if error.is_own else ""
            raise OSError(f"too many names{whose} are being resolved") from None
        except TimeoutError:
            raise OSError(f"the resolver does not answer within {_SECONDS:g} s") from None
        return list(dict.fromkeys(str(address[0]) for *_, address in answers))


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
