"""Look-ups of the hosts of webhooks: within a deadline, and a few of each user at once."""

import socket
from collections.abc import Sequence

from service.core.thread_slots import SlotsTakenError, ThreadSlots

_SECONDS = 3.0


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
