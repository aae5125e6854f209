"""Authentication precedes the body; rate limits count by the verified principal, else by the address."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.api.middleware.authentication import SIGN_IN_PATHS
from tests.support.cpu_limit import at_most
from tests.support.raw_http import exchange, served_with_limits
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

HEADERS_ONLY = (
    "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{extra}"
    "Content-Type: application/json\r\nContent-Length: 900\r\n\r\n"
)


@pytest.fixture
def limited(database_url: str, tmp_path: Path) -> Any:
    world = World(database_url, tmp_path / "state", rate_per_second=0.001, rate_burst=5)
    yield world
    world.database.dispose()


@pytest.mark.parametrize("extra", ["", "Authorization: Bearer ty_000000000000_x\r\n", "Cookie: trainyard=x\r\n"])
def test_request_without_valid_token_is_answered_before_its_body(world: World, extra: str) -> None:
    paths = world.app.openapi()["paths"]
    private = {path: verbs for path, verbs in paths.items() if path not in SIGN_IN_PATHS}
    routes = [(verb.upper(), path) for path, verbs in private.items() for verb in verbs if "requestBody" in verbs[verb]]
    assert len(routes) > 10
    with served_with_limits(world) as port:
        for method, path in routes:
            filled = path.replace("{aid}", "0" * 16).replace("{digest}", "sha256:" + "0" * 64)
            head = HEADERS_ONLY.format(method=method, path=filled, extra=extra)
            if "Cookie" in extra:
                head = head.replace(
                    "\r\nHost: localhost", f"\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}"
                )
            answer = exchange(port, head.encode(), seconds=5)
            assert answer.startswith(b"HTTP/1.1 401 "), (method, path, answer[:200])


def test_bodies_of_sign_ins_are_small(world: World) -> None:
    answer = world.new_client(None).post("/v1/sign-in/munge", content=b"x" * 8193)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def statuses(client: TestClient, requests: list[dict[str, str]]) -> Counter[int]:
    return Counter(client.get("/v1/jobs", headers=headers).status_code for headers in requests)


def test_new_wrong_tokens_share_the_limit_of_their_address(limited: World) -> None:
    made_up = [{"Authorization": f"Bearer ty_{number:012x}_{'x' * 43}"} for number in range(20)]
    malformed = [{"Authorization": f"Bearer x{number}"} for number in range(20)]
    cookies = [{"Cookie": f"trainyard=x{number}"} for number in range(20)]
    assert statuses(limited.new_client(None), made_up + malformed + cookies) == {401: 5, 429: 55}


def test_wrong_worker_tokens_have_no_limit_of_their_own(limited: World) -> None:
    made_up = [{"Authorization": f"Bearer tyw_{number:016x}_{'x' * 43}"} for number in range(20)]
    assert statuses(limited.new_client(None), made_up) == {401: 5, 429: 15}


@pytest.mark.parametrize("name", ["Authorization", "Cookie"])
def test_random_header_does_not_evade_the_limit_of_sign_in(limited: World, name: str) -> None:
    anonymous = limited.new_client(None)
    answers = Counter(
        anonymous.post(
            "/sign-in", data={"token": "x"}, headers={"Origin": "http://localhost", name: f"trainyard=x{number}"}
        ).status_code
        for number in range(20)
    )
    assert answers == {401: 5, 429: 15}


def test_verified_token_is_accepted_from_an_exhausted_address(limited: World) -> None:
    ada, bob = limited.new_user("user", "ada"), limited.new_user("user", "bob")
    assert ada.get("/v1/jobs").status_code == 200
    assert statuses(limited.new_client(None), [{} for _ in range(10)]) == {401: 5, 429: 5}
    assert ada.get("/v1/jobs").status_code == 200
    assert bob.get("/v1/jobs").status_code == 429, "a token that was not verified before is not looked up"


def test_token_and_session_of_one_user_share_a_limit(limited: World) -> None:
    browser = limited.new_client(None)
    form = {"token": limited.token}
    browser.post("/sign-in", data=form, headers={"Origin": "http://localhost"}, follow_redirects=False)
    answers = [client.get("/v1/jobs").status_code for client in (browser, limited.client) * 4]
    assert sorted(answers) == [200] * 5 + [429] * 3


def test_revoked_token_counts_against_the_address(limited: World) -> None:
    ada = limited.new_user("user", "ada")
    assert ada.get("/v1/jobs").status_code == 200
    limited.client.delete(f"/v1/tokens/{ada.headers['authorization'].split('_')[1]}")
    assert Counter(ada.get("/v1/jobs").status_code for _ in range(10)) == {401: 5, 429: 5}


def test_addresses_of_one_ipv6_network_share_a_limit(limited: World) -> None:
    clients = [
        TestClient(limited.app, base_url="http://localhost", client=(f"2001:db8::{n:x}", 1)) for n in range(1, 11)
    ]
    assert Counter(client.get("/v1/jobs").status_code for client in clients) == {401: 5, 429: 5}
    other = TestClient(limited.app, base_url="http://localhost", client=("2001:db8:0:1::1", 1))
    assert other.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize("path", ["/metrics", "/readyz"])
def test_probes_are_limited_by_address(limited: World, path: str) -> None:
    anonymous = limited.new_client(None)
    assert Counter(anonymous.get(path).status_code for _ in range(8)) == {200: 5, 429: 3}


def test_wrong_tokens_do_not_use_the_limit_of_probes(limited: World) -> None:
    client = limited.new_client("wrong")
    assert {client.get("/v1/jobs").status_code for _ in range(50)} == {401, 429}
    assert [limited.new_client(None).get(path).status_code for path in ("/readyz", "/metrics")] == [200, 200]


def test_liveness_probe_is_not_limited(limited: World) -> None:
    anonymous = limited.new_client(None)
    assert {anonymous.get("/livez").status_code for _ in range(20)} == {200}


def test_metrics_page_is_rendered_once_a_second(world: World) -> None:
    anonymous = world.new_client(None)
    first = anonymous.get("/metrics").text
    world.client.post("/v1/jobs", json=SPEC)
    assert anonymous.get("/metrics").text == first
    world.clock.advance(1)
    assert anonymous.get("/metrics").text != first


def test_wrong_tokens_cost_little_processor_time(world: World) -> None:
    anonymous = world.new_client(None)
    with at_most(5):
        statuses(anonymous, [{"Authorization": f"Bearer ty_{number:012x}_{'x' * 43}"} for number in range(200)])
