"""The numbered cases of invalid input; the name of each test contains the number of its case.

Elsewhere: 7, 16 and 21 in test_bad_input.py; 10 to 14 in test_checkpoints.py, test_artifacts.py and test_local.py; 16
and 17 in test_ingest.py; 26 in test_commands.py; the connections of 25 in
test_connection_limits.py; the files of 27 in test_private_files.py.
"""

import gzip
import json
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.api.dependencies import AppState
from service.api.middleware.authentication import SIGN_IN_PATHS
from service.auth.principals import ensure_admin_token
from service.core.errors import ServiceError
from service.core.settings import Settings
from service.plugins.installed import PLUGINS
from service.plugins.webhooks.part import part_of
from service.web.app import create_app
from tests.support.receiver import Receiver, receiver
from tests.support.world import SPEC, World
from trainyard.cli.output import sanitize
from trainyard.contract.bounds import MAX_SPEC_BYTES

pytestmark = pytest.mark.databases("sqlite")

INJECTION = "x\\'\"\ntouch /tmp/owned #"
JSON = {"Content-Type": "application/json"}


def refused(answer: Any, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_every_numbered_case_has_a_test() -> None:
    texts = [path.read_text() for path in Path(__file__).parents[3].rglob("test_*.py")]
    assert {int(n) for text in texts for n in re.findall(r"def test_case_(\d\d)_", text)} == set(range(1, 28))


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\0b", "a\u2028b", INJECTION])
def test_case_01_control_characters_in_a_name_are_rejected(world: World, name: str) -> None:
    answer = world.client.post("/v1/jobs", json={**SPEC, "name": name})
    refused(answer, 422, "invalid_spec")
    assert answer.json()["error"]["param"] == "name"


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint", "exclude"])
@pytest.mark.parametrize("value", ["gpu\n#SBATCH --uid=0", "a b", "a;b", "$(x)", "a\\b", "", "x" * 129, "a'b"])
def test_case_02_unsafe_resource_values_are_rejected(world: World, field: str, value: str) -> None:
    answer = world.client.post("/v1/jobs", json={**SPEC, "resources": {field: value}})
    refused(answer, 422, "invalid_spec")
    assert answer.json()["error"]["param"] == f"resources.{field}"


@pytest.mark.parametrize(
    "option", ["wrap", "export", "output", "uid", "chdir", "propagate", "mail-user", "--wrap", "a b"]
)
def test_case_03_sbatch_options_in_a_spec_are_rejected(world: World, option: str) -> None:
    answer = world.client.post("/v1/jobs", json={**SPEC, "resources": {option: "x"}})
    refused(answer, 422, "invalid_spec")
    assert answer.json()["error"]["param"] == f"resources.{option}"


@pytest.mark.parametrize("option", ["wrap", "uid", "array", "job-name", "--comment", "node_list", "mail_user"])
def test_case_03_options_of_the_service_are_rejected(world: World, option: str) -> None:
    answer = world.client.post("/v1/jobs", json={**SPEC, "resources": {"options": {option: "x"}}})
    refused(answer, 422, "invalid_spec")
    assert answer.json()["error"]["param"] == f"resources.options.{option}"


@pytest.mark.parametrize(
    "name", ["lower", "1X", "A-B", "A B", "A=B", "LD_PRELOAD", "PYTHONPATH", "SLURM_JOB_ID", "SBATCH_X", "SUBMITIT_X"]
)
def test_case_04_invalid_and_reserved_variables_are_rejected(world: World, name: str) -> None:
    answer = world.client.post("/v1/jobs", json={**SPEC, "environment": {"variables": {name: "x"}}})
    refused(answer, 422, "invalid_spec")
    assert answer.json()["error"]["param"].startswith("environment.variables")


def test_case_05_arguments_are_not_interpreted_by_a_shell(world: World) -> None:
    argv = ["/bin/echo", "two words", "'q\"", "$(touch x)", "-rf", "a\nb"]
    answer = world.client.post("/v1/jobs", json={"task": "script", "gpus": 1, "argv": argv})
    if answer.status_code == 422:
        assert answer.json()["error"]["param"].startswith("argv"), answer.text
        argv.pop()
        answer = world.client.post("/v1/jobs", json={"task": "script", "gpus": 1, "argv": argv})
    assert answer.status_code == 201, answer.text
    job = answer.json()["id"]
    world.tick()
    launch = json.loads(world.folder(job).launch.read_text())
    assert launch["spec"]["argv"] == argv
    (plan,) = world.scheduler.submitted
    assert "touch" not in plan.script


def test_case_06_all_invalid_tokens_get_the_same_response(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = world.client.post("/v1/tokens", json={"name": "gone"}).json()
    world.client.delete(f"/v1/tokens/{gone['id']}")
    old = world.client.post("/v1/tokens", json={"name": "old", "expires_in_days": 1}).json()
    world.clock.advance(86_400)
    compared: list[str] = []
    from service.auth import principals as actions

    real = actions.constant_time_equal
    monkeypatch.setattr(actions, "constant_time_equal", lambda one, other: compared.append(one) or real(one, other))
    unknown = "ty_000000000000_" + "x" * 43
    wrong = gone["token"][:-1] + ("a" if gone["token"][-1] != "a" else "b")
    responses = set()
    for token in (gone["token"], old["token"], unknown, wrong):
        answer = world.new_client(token).get("/v1/jobs")
        responses.add((answer.status_code, answer.text, answer.headers["www-authenticate"]))
    for header in ("", "Bearer", "Bearer x", "Basic YTpi", f"Bearer {unknown}\u00e9".encode("latin-1")):
        answer = world.new_client(None).get("/v1/jobs", headers={"Authorization": header})
        responses.add((answer.status_code, answer.text, answer.headers["www-authenticate"]))
    assert len(responses) == 1
    assert responses.pop()[0] == 401
    assert len(compared) == 4, "a hash is compared where there is none too: response times reveal nothing"


def test_case_08_attempt_token_expires_after_its_attempt(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.execution = 10_000
    refused(worker.metrics([("a", 1, 1.0)]), 409, "stale_execution")
    worker.execution = 1
    worker.end("completed")
    world.tick()
    world.clock.advance(86_000)
    refused(worker.metrics([("a", 2, 1.0)]), 403, "attempt_ended")
    world.clock.advance(500)
    refused(worker.metrics([("a", 3, 1.0)]), 401, "invalid_token")


def test_case_09_changing_another_users_job_is_forbidden(world: World) -> None:
    job = world.submit()
    bob = world.new_user("user", "bob")
    assert bob.get(f"/v1/jobs/{job}").status_code == 200
    for verb in ("cancel", "pause", "resume", "retry", "profile"):
        refused(bob.post(f"/v1/jobs/{job}/{verb}", json={}), 403, "forbidden")
    refused(bob.delete(f"/v1/jobs/{job}"), 403, "forbidden")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/jobs", "application/json"), ("/v1/jobs", "application/yaml"), ("/v1/tokens", "application/json")],
)
def test_case_15_huge_and_deeply_nested_bodies_are_rejected(world: World, path: str, kind: str) -> None:
    headers = {"Content-Type": kind}

    def post(body: Any, **more: str) -> Any:
        return world.client.post(path, content=body, headers={**headers, **more})

    limit = MAX_SPEC_BYTES
    refused(post(b" " * (limit + 1)), 413, "body_too_large")
    refused(post(iter([b" " * 65_536] * (limit // 65_536 + 1))), 413, "body_too_large")
    refused(post(b'{"name": "' + b"x" * 10_000_000 + b'"}'), 413, "body_too_large")
    bomb = gzip.compress(b" " * 10_000_000)
    refused(post(bomb, **{"Content-Encoding": "gzip"}), 400, "content_encoding")
    deep = post(b"[" * limit)
    assert deep.status_code in (400, 422), deep.text
    nested = post(b'{"metadata": ' + b'{"a":' * 40_000 + b"1" + b"}" * 40_001)
    assert nested.status_code in (400, 422), nested.text


@pytest.mark.databases("sqlite", "postgres")
def test_case_18_idempotency_key_creates_one_job(world: World) -> None:
    headers = {"Idempotency-Key": "one"}

    def post(_: int) -> Any:
        return world.client.post("/v1/jobs", json=SPEC, headers=headers)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, range(4)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = world.client.post("/v1/jobs", json={**SPEC, "seed": 7}, headers=headers)
    refused(other, 409, "idempotency_key_reused")
    assert len(world.client.get("/v1/jobs").json()["data"]) == 1


class TestCase19:
    """Webhook URLs are checked at creation and again before each delivery."""

    @pytest.mark.parametrize(
        "url",
        [
            "https://127.0.0.1/",
            "https://localhost/",
            "https://169.254.169.254/latest/meta-data/",
            "https://10.1.2.3/",
            "https://100.64.0.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://127.1/",
            "http://1.1.1.1/",
            "file:///etc/passwd",
            "https://user@1.1.1.1/",
            "https://1.1.1.1:22/",
        ],
    )
    def test_case_19_private_webhook_url_is_rejected_at_creation(self, world: World, url: str) -> None:
        answer = world.client.post("/v1/webhooks", json={"url": url})
        refused(answer, 422, "forbidden_url")
        assert answer.json()["error"]["param"] == "url"
        assert world.client.get("/v1/webhooks").json()["data"] == []

    def test_case_19_unresolvable_webhook_host_is_rejected(self, world: World) -> None:
        def unknown(_host: str, _port: int, _owner: str) -> list[str]:
            raise OSError("no such name")

        part_of(world.app_state).resolver = unknown
        refused(world.client.post("/v1/webhooks", json={"url": "https://x.example/"}), 422, "unknown_url")

    @pytest.mark.parametrize("later", ["127.0.0.1", "10.0.0.1", "::ffff:127.0.0.1", "169.254.169.254"])
    def test_case_19_dns_rebinding_is_detected_before_sending(self, world: World, later: str) -> None:
        """A host that resolves to a public address at creation and a private one at delivery is not contacted."""
        lookups: list[str] = []

        def rebinding(host: str, _port: int, _owner: str) -> list[str]:
            lookups.append(host)
            return ["93.184.215.14"] if len(lookups) == 1 else [later]

        part_of(world.app_state).resolver = rebinding
        webhook = world.client.post("/v1/webhooks", json={"url": "https://rebind.example/"}).json()["id"]
        world.client.post(f"/v1/webhooks/{webhook}/test")
        assert world.deliver_webhooks() == 1
        (delivery,) = world.client.get(f"/v1/webhooks/{webhook}/deliveries").json()["data"]
        assert delivery["error"].startswith("not sent: the URL resolves to an address that is not public")
        assert later not in delivery["error"]
        assert len(lookups) == 2, "resolved once for each sending: the address judged is the address called"

    @pytest.fixture
    def target(self, world: World) -> Iterator[Receiver]:
        with receiver() as made:
            hosts = (f"127.0.0.1:{made.port}",)
            world.app_state.settings = world.settings.model_copy(update={"webhook_allowed_hosts": hosts})
            yield made

    def sent(self, world: World, target: Receiver) -> dict[str, Any]:
        url = f"http://127.0.0.1:{target.port}/"
        webhook = world.client.post("/v1/webhooks", json={"url": url}).json()["id"]
        world.client.post(f"/v1/webhooks/{webhook}/test")
        assert world.deliver_webhooks() == 1
        (delivery,) = world.client.get(f"/v1/webhooks/{webhook}/deliveries").json()["data"]
        first: dict[str, Any] = delivery
        return first

    def test_case_19_redirect_is_not_followed(self, world: World, target: Receiver) -> None:
        with receiver() as inner:
            target.status, target.location = 307, f"http://127.0.0.1:{inner.port}/"
            assert self.sent(world, target)["error"] == "redirects are not followed"
            assert inner.messages == []

    def test_case_19_long_webhook_response_is_cut_off(self, world: World, target: Receiver) -> None:
        target.answer = b"x" * 200_000
        assert self.sent(world, target)["error"] == "the response is longer than 65536 bytes"

    def test_case_19_slow_webhook_response_times_out(self, world: World, target: Receiver) -> None:
        target.seconds = 30.0
        assert self.sent(world, target)["error"] == "no answer within 1 s"

    def test_case_19_removed_allowed_host_stops_deliveries(self, world: World, target: Receiver) -> None:
        url = f"http://127.0.0.1:{target.port}/"
        webhook = world.client.post("/v1/webhooks", json={"url": url}).json()["id"]
        world.client.post(f"/v1/webhooks/{webhook}/test")
        world.app_state.settings = world.settings
        world.deliver_webhooks()
        assert target.messages == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_case_20_cross_site_changes_are_rejected(world: World, method: str) -> None:
    job = world.submit()
    path = f"/v1/jobs/{job}" if method == "DELETE" else f"/v1/jobs/{job}/cancel"
    for origin in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"}):
        answer = world.client.request(method, path, headers={"Cookie": "session=1", **origin})
        refused(answer, 403, "cross_site")
    assert world.job(job)["desired"] == "run"
    own = world.client.post(f"/v1/jobs/{job}/cancel", headers={"Cookie": "session=1", "Origin": "http://localhost"})
    assert own.status_code == 202
    assert world.client.get("/v1/jobs", headers={"Cookie": "session=1"}).status_code == 200


def test_case_22_markup_and_control_codes_are_served_as_text(world: World) -> None:
    name = "<script>alert(1)</script>"
    job = world.submit(name=name)
    worker = world.start(job)
    worker.log("0", 0, b"\x1b]0;owned\x07\x1b[2Jred \x9b31m<b>line\n")
    shown = world.client.get(f"/v1/jobs/{job}")
    assert shown.headers["content-type"] == "application/json"
    assert shown.json()["name"] == name
    log = world.client.get(f"/v1/jobs/{job}/logs")
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert {shown.headers["x-content-type-options"], log.headers["x-content-type-options"]} == {"nosniff"}
    assert sanitize(log.text) == "red \ufffd31m<b>line\n"


@pytest.mark.databases("sqlite", "postgres")
@pytest.mark.parametrize("value", ["%", "_", "'; DROP TABLE jobs; --", "\\", "' OR '1'='1", "a\u0000b"])
def test_case_23_filter_values_are_not_interpreted_as_sql(world: World, value: str) -> None:
    world.submit()
    for field in ("name", "created_by", "metadata[team]", "metadata[%]"):
        answer = world.client.get("/v1/jobs", params={field: value})
        assert answer.status_code == (422 if "\0" in value else 200), (field, answer.text)
        assert answer.json().get("data", []) == []
    for field in ("actor", "action", "target"):
        answer = world.client.get("/v1/audit", params={field: value})
        assert answer.status_code == (422 if "\0" in value else 200), (field, answer.text)
        assert answer.json().get("data", []) == []
    refused(world.client.get("/v1/jobs/a%00b"), 422, "invalid_path")
    assert len(world.client.get("/v1/jobs").json()["data"]) == 1


def test_case_24_credentials_in_a_spec_are_rejected_and_not_repeated(world: World) -> None:
    secret_value = "hush-hush-4711"
    fields: list[tuple[str, dict[str, object]]] = [
        (f"environment.variables.{name}", {"environment": {"variables": {name: secret_value}}})
        for name in ("HF_TOKEN", "DB_PASSWORD", "AWS_SECRET", "MY_API_KEY")
    ]
    fields += [("metadata.db_password", {"metadata": {"db_password": secret_value}})]
    fields += [
        ("environment.variables.APP_URL", {"environment": {"variables": {"APP_URL": f"https://a:{secret_value}@b/"}}})
    ]
    for param, changes in fields:
        for route, body in (
            ("jobs", {**SPEC, **changes}),
            ("sweeps", {"spec": {**SPEC, **changes}, "grid": {"seed": [1]}}),
        ):
            answer = world.client.post(f"/v1/{route}", json=body)
            assert answer.status_code == 422, answer.text
            assert answer.json()["error"]["param"].endswith(param)
            assert "trainyard secrets set" in answer.json()["error"]["message"]
            assert secret_value not in answer.text
    bad = {**SPEC, "environment": {"variables": {"HF_TOKEN": secret_value + "\n"}}, "seed": "x"}
    assert secret_value not in world.client.post("/v1/jobs", json=bad).text
    assert secret_value not in world.client.get("/v1/audit").text
    assert world.client.get("/v1/jobs").json()["data"] == []


def test_case_25_header_spelling_does_not_evade_rate_limit(database_url: str, tmp_path: Path) -> None:
    world = World(database_url, tmp_path / "state", rate_per_second=1, rate_burst=3)
    spellings = [f"Bearer {world.token}", f"bearer {world.token}", f"Bearer   {world.token}", f"BEARER \t{world.token}"]
    answers = [world.client.get("/v1/jobs", headers={"Authorization": text}) for text in spellings]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429]
    world.database.dispose()


def test_case_25_exhausted_rate_limit_returns_429(database_url: str, tmp_path: Path) -> None:
    world = World(database_url, tmp_path / "state", rate_per_second=2, rate_burst=10)
    answers = [world.client.get("/v1/jobs") for _ in range(12)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 2
    refused(answers[-1], 429, "rate_limited")
    assert answers[-1].headers["retry-after"] == "1"
    assert answers[0].headers["ratelimit-limit"] == "10"
    assert [answer.headers["ratelimit-remaining"] for answer in answers[-4:]] == ["1", "0", "0", "0"]
    assert answers[-1].headers["ratelimit-reset"] == "5"
    assert world.new_user("user", "ada").get("/v1/jobs").status_code == 200, "each token has its own bucket"
    assert world.client.get("/livez").status_code == 200
    world.clock.advance(1)
    assert world.client.get("/v1/jobs").status_code == 200
    world.database.dispose()


class TestCase27:
    def test_case_27_all_api_routes_require_authentication(self, database_url: str, tmp_path: Path) -> None:
        """No setting disables it: each route except the probes and the sign-in by munge, which is off here, or by code
        requires a token on every bound address."""
        assert not [name for name in Settings.model_fields if "auth" in name]
        world = World(database_url, tmp_path / "state", host="0.0.0.0")
        anonymous = world.new_client(None)
        for path, methods in (
            create_app(AppState(world.settings, world.database, world.clock), PLUGINS).openapi()["paths"].items()
        ):
            for method in methods:
                if path.startswith("/v1/"):
                    digest = "sha256:" + "0" * 64
                    filled = path.replace("{digest}", digest).replace("{aid}", "0" * 16)
                    filled += "?rank=0&offset=0" if filled.endswith("logs") else ""
                    answer = anonymous.request(method, filled)
                    expected = (404, 422) if path in SIGN_IN_PATHS else (401,)
                    assert answer.status_code in expected, (method, path, answer.status_code, answer.text)
        world.database.dispose()

    def test_case_27_readable_admin_token_file_is_rejected(self, world: World) -> None:
        path = world.settings.state / "admin_token"
        path.chmod(0o644)
        with pytest.raises(ServiceError, match="chmod 600"):
            ensure_admin_token(world.database, path, world.clock())
        path.chmod(0o600)
        ensure_admin_token(world.database, path, world.clock())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
