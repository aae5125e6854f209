"""Names of webhooks are resolved within a deadline."""

import socket
import threading
from collections.abc import Iterator

import pytest

from service.webhooks import service as webhook_service
from service.webhooks.service import resolve_host


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A resolver that answers when the event is set."""
    event = threading.Event()

    def getaddrinfo(_host: str, port: int, **_options: object) -> list[tuple[object, ...]]:
        event.wait(10)
        return [(None, None, None, "", ("93.184.216.34", port))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(webhook_service, "_RESOLVE_SECONDS", 0.05)
    yield event
    event.set()


def test_addresses_are_listed_once(answered: threading.Event) -> None:
    answered.set()
    assert resolve_host("example.org", 443) == ["93.184.216.34"]


def test_slow_resolver_is_an_error_after_the_deadline(answered: threading.Event) -> None:
    with pytest.raises(OSError, match="does not answer within"):
        resolve_host("slow.example.org", 443)


def test_lookups_in_progress_are_limited(answered: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_service, "_LOOKUPS", threading.BoundedSemaphore(1))
    for message in ("does not answer within", "too many names"):
        with pytest.raises(OSError, match=message):
            resolve_host("slow.example.org", 443)
