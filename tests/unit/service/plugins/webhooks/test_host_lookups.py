"""Names of webhooks are resolved within a deadline, and the slow names of one user do not stop those of others."""

import socket
import threading
from collections.abc import Iterator

import pytest

from service.plugins.webhooks import part
from service.plugins.webhooks.part import HostLookups


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that answers when the event is set."""
    event = threading.Event()

    def getaddrinfo(_host: str, port: int, **_options: object) -> list[tuple[object, ...]]:
        event.wait(10)
        return [(None, None, None, "", ("93.184.216.34", port))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(part, "_SECONDS", 0.05)
    yield event
    event.set()


def test_addresses_are_listed_once(answered: threading.Event) -> None:
    answered.set()
    assert HostLookups().resolve("example.org", 443, "ann") == ["93.184.216.34"]


def test_slow_resolver_is_an_error_after_the_deadline(answered: threading.Event) -> None:
    with pytest.raises(OSError, match="does not answer within"):
        HostLookups().resolve("slow.example.org", 443, "ann")


def test_lookups_in_progress_are_limited(answered: threading.Event) -> None:
    lookups = HostLookups(each=2, total=1)
    for message in ("does not answer within", "too many names"):
        with pytest.raises(OSError, match=message):
            lookups.resolve("slow.example.org", 443, "ann")


def test_slow_names_of_one_user_leave_lookups_to_others(answered: threading.Event) -> None:
    lookups = HostLookups(each=2, total=4)
    for message in ("does not answer within", "does not answer within", "webhooks of ann"):
        with pytest.raises(OSError, match=message):
            lookups.resolve("slow.example.org", 443, "ann")
    with pytest.raises(OSError, match="does not answer within"):
        lookups.resolve("slow.example.org", 443, "ben")


def test_ended_lookups_are_not_counted(answered: threading.Event) -> None:
    answered.set()
    lookups = HostLookups(each=1, total=1)
    for _ in range(3):
        lookups.resolve("example.org", 443, "ann")
