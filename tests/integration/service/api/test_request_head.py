"""Limits of request heads apply before cookies, headers or parameters are parsed."""

import pytest
import structlog

from service.api.middleware.head import MAX_HEAD_BYTES, check_head
from service.auth.sessions import MAX_COOKIE_BYTES, Cookie
from service.core.errors import HeadTooLargeError
from tests.support.cpu_limit import at_most
from tests.support.raw_http import exchange, served_with_limits
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.mark.parametrize("value", ['trainyard="' + "\\a" * 31_000 + '"', "a=b; " * 12_000, "x" * 62_000])
def test_large_cookie_is_refused_at_once(world: World, value: str) -> None:
    with at_most(1):
        answer = world.new_client(None).get("/v1/jobs", headers={"Cookie": value})
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "head_too_large")


@pytest.mark.parametrize("value", ['trainyard="' + "\\a" * 2000 + '"', "trainyard=" + ";" * 4000, "=;" * 2000])
def test_malformed_cookie_is_read_in_linear_time(value: str) -> None:
    assert len(value) <= MAX_COOKIE_BYTES
    with at_most(1):
        for _ in range(20):
            Cookie(secure=False).read(value)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("trainyard=abc", "abc"),
        ("a=b; trainyard=abc; c=d", "abc"),
        ("a=b;trainyard=abc", "abc"),
        ("trainyard=abc; trainyard=other", "abc"),
        ("trainyard=", None),
        ("trainyard", None),
        ("xtrainyard=abc", None),
        ("trainyard=" + "x" * 201, None),
        ("", None),
        (None, None),
    ],
)
def test_session_secret_is_read_from_the_cookie_header(header: str | None, expected: str | None) -> None:
    assert Cookie(secure=False).read(header) == expected


@pytest.mark.parametrize("name", ["Authorization", "Host", "Cookie", "Origin", "X-CSRF-Token", "Content-Type"])
def test_repeated_header_is_refused(world: World, name: str) -> None:
    headers = [("Authorization", f"Bearer {world.token}"), (name, "localhost"), (name, "localhost")]
    answer = world.new_client(None).get("/v1/jobs", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "repeated_header")


def test_second_host_header_is_refused_on_the_wire(world: World) -> None:
    with served_with_limits(world) as port:
        head = b"GET /livez HTTP/1.1\r\nHost: evil\r\nHost: localhost\r\n\r\n"
        assert exchange(port, head).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("upgrade", [b"", b"Upgrade: h2c\r\nConnection: Upgrade\r\n"])
def test_large_head_that_arrives_at_once_is_refused(world: World, upgrade: bytes) -> None:
    with served_with_limits(world) as port:
        head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"X: " + b"y" * 120_000 + b"\r\n\r\n"
        assert exchange(port, head).split(b" ", 2)[1] == b"431"


def test_many_query_parameters_are_refused(world: World) -> None:
    query = "&".join(f"metadata[a{number}]=b" for number in range(300))
    assert world.client.get(f"/v1/jobs?{query}").status_code == 431


def test_unknown_method_is_refused_and_no_metrics_label(world: World) -> None:
    with served_with_limits(world) as port:
        # Longer methods may arrive in two parts, of which the first does not show the offer of an upgrade.
        for method in (b"INVENTED", b"X" * 8_000, b"PROPFIND"):
            head = b"%s /livez HTTP/1.1\r\nHost: localhost\r\n" % method
            answer = exchange(port, head + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 501 "), method
    with structlog.testing.capture_logs() as lines:
        answer = world.new_client(None).request("PROPFIND", "/v1/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "method_not_supported")
    assert not lines, "refusals are not logged one by one"
    exposition = world.new_client(None).get("/metrics").text
    assert 'method="other",route="unmatched",status="501"' in exposition
    assert not any(name in exposition for name in ("INVENTED", "XXXX", "PROPFIND"))


def test_method_counts_in_the_size_of_the_head() -> None:
    scope = {"method": "GET", "path": "/", "query_string": b"", "headers": [(b"x", b"x" * (MAX_HEAD_BYTES - 6 - 3))]}
    check_head(scope)
    with pytest.raises(HeadTooLargeError):
        check_head({**scope, "method": "HEAD"})
