"""The number of connections that the limit of open files allows."""

import resource

import pytest
import structlog

from service.server import usable_connections


@pytest.mark.parametrize(
    ("soft", "hard", "usable", "raised"),
    [
        (1024, 100_000, 4000, 4256),
        (1024, resource.RLIM_INFINITY, 4000, 4256),
        (1024, 2048, 1792, 2048),
        (200, 200, 1, 200),
        (50_000, 50_000, 4000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4000, None),
    ],
)
def test_file_limit_bounds_the_connections(
    soft: int, hard: int, usable: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: calls.append(limits))
    with structlog.testing.capture_logs() as lines:
        assert usable_connections(4000) == usable
    assert calls == ([] if raised is None else [(raised, hard)])
    assert bool(lines) == (usable < 4000)
