"""Look-ups of the hosts of webhooks: within a deadline, and a few of each user at once."""

import socket
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future

_SECONDS = 3.0


class HostLookups:
    """Resolves names with the resolver of this machine.

    A look-up may last long after its caller stopped waiting, as nothing can end it. It counts until it ends, so that
    the slow names of one user use up their own share and not that of others.
    """

    def __init__(self, *, each: int = 4, total: int = 32):
        """
        Args:
            each: Look-ups in progress of one user.
            total: Look-ups in progress of all users.
        """
        self._each = each
        self._total = total
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def resolve(self, host: str, port: int, owner: str) -> Sequence[str]:
        """Return the addresses of a host, for a webhook of this user.

        Raises:
            OSError: The name is unknown, the resolver does not answer within 3 s, or too many look-ups are in progress.
        """
        self._begin(owner)
        result: Future[list[str]] = Future()

        def run() -> None:
            try:
                answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:
                self._end(owner)
                result.set_exception(error)
                return
            self._end(owner)
            result.set_result(list(dict.fromkeys(str(address[0]) for *_, address in answers)))

        # A daemon: the threads of an executor would delay the end of the process.
        threading.Thread(target=run, name="resolve-host", daemon=True).start()
        try:
            return result.result(_SECONDS)
        except TimeoutError:
            raise OSError(f"the resolver does not answer within {_SECONDS:g} s") from None

    def _begin(self, owner: str) -> None:
        with self._lock:
            if self._counts[owner] >= self._each:
                raise OSError(f"too many names of webhooks of {owner} are being resolved")
            if self._counts.total() >= self._total:
                raise OSError("too many names are being resolved")
            self._counts[owner] += 1

    def _end(self, owner: str) -> None:
        with self._lock:
            self._counts -= Counter((owner,))
