"""Webhooks, delivered to a real receiver on this machine by way of the allow-list."""

import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.plugins.webhooks.part import part_of
from service.plugins.webhooks.sender import Sender
from service.plugins.webhooks.signing import RETRY_DELAYS
from tests.support.receiver import Receiver, receiver, self_signed
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def target(world: World) -> Iterator[Receiver]:
    with receiver() as made:
        allow(world, f"127.0.0.1:{made.port}")
        yield made


def allow(world: World, *hosts: str) -> None:
    world.app_state.settings = world.settings.model_copy(update={"webhook_allowed_hosts": hosts})


def hook(world: World, target: Receiver, **body: Any) -> dict[str, Any]:
    answer = world.client.post("/v1/webhooks", json={"url": f"http://127.0.0.1:{target.port}/hook?x=1", **body})
    assert answer.status_code == 201, answer.text
    webhook: dict[str, Any] = answer.json()
    return webhook


def deliveries(world: World, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    page = world.client.get(f"/v1/webhooks/{webhook['id']}/deliveries").json()
    return list(page["data"])


def test_messages_for_slack_are_signed_texts_with_a_link(world: World, target: Receiver) -> None:
    webhook = hook(world, target, format="slack", statuses=["succeeded"])
    assert webhook["format"] == "slack"
    assert hook(world, target)["format"] == "trainyard"
    world.client.delete(f"/v1/webhooks/{world.client.get('/v1/webhooks').json()['data'][0]['id']}")
    job = world.submit(name="a <!channel> & b")
    world.start(job).end("completed")
    world.tick()
    while world.deliver_webhooks():
        pass
    messages = [json.loads(message.body) for message in target.messages]
    (text,) = (body["text"] for body in messages if set(body) == {"text"})
    assert text.startswith("*a &lt;!channel&gt; &amp; b* succeeded (completed): ")
    assert text.endswith(f" <https://trainyard.example/jobs/{job}|{job}>")
    assert "Runtime: " in text
    sent = next(message for message in target.messages if '"text"' in message.body)
    signed = f"{sent.headers['webhook-id']}.{sent.headers['webhook-timestamp']}.{sent.body}".encode()
    key = base64.b64decode(webhook["secret"].removeprefix("whsec_"))
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert sent.headers["webhook-signature"] == f"v1,{digest}"


def test_alerts_of_a_program_are_delivered_once_and_limited(
    world: World, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.attempts.service.MAX_ALERTS", 3)
    webhook = hook(world, target, statuses=["failed"])
    worker = world.start(world.submit())
    events = [
        {
            "sequence": number,
            "type": "alert",
            "level": "warning",
            "message": f"low {number}: now",
            "data": {"title": f"low {number}", "text": "now"},
            "time": world.clock().isoformat(),
        }
        for number in range(5)
    ]
    for part in (events[:2], events[1:]):
        worker.post("events", {"execution": 1, "events": part})
    assert [one["type"] for one in deliveries(world, webhook)] == ["job.alert"] * 3
    while world.deliver_webhooks():
        pass
    bodies = sorted((json.loads(message.body) for message in target.messages), key=lambda body: body["alert"]["title"])
    assert [body["alert"]["title"] for body in bodies] == ["low 0", "low 1", "low 2"]
    assert bodies[0]["alert"] == {"level": "warning", "title": "low 0", "text": "now"}
    assert bodies[0]["job"]["status"] == "running"


@pytest.mark.databases("postgres")
def test_suspected_stall_is_delivered_as_an_alert(world: World, target: Receiver) -> None:
    hook(world, target, statuses=["failed"])
    worker = world.start(world.submit())
    data = {"title": "No progress for 22 s", "text": "Rank 1 is behind", "kind": "code"}
    event = {"sequence": 1, "type": "stall_suspected", "level": "warning", "message": "No progress", "data": data}
    worker.post("events", {"execution": 1, "events": [event | {"time": world.clock().isoformat()}]})
    while world.deliver_webhooks():
        pass
    (message,) = target.messages
    alert = {"level": "warning", "title": "No progress for 22 s", "text": "Rank 1 is behind"}
    assert json.loads(message.body)["alert"] == alert


def test_unknown_format_is_refused(world: World) -> None:
    answer = world.client.post("/v1/webhooks", json={"url": "https://example.org/hook", "format": "teams"})
    assert answer.status_code == 422


def test_each_status_change_is_delivered_once_and_signed(world: World, target: Receiver) -> None:
    webhook = hook(world, target)
    job = world.submit(metadata={"team": "nlp"})
    world.start(job).end("completed")
    world.tick()
    while world.deliver_webhooks():
        pass
    bodies = sorted((json.loads(m.body) for m in target.messages), key=lambda body: body["job"]["sequence"])
    assert [body["job"]["status"] for body in bodies] == ["queued", "submitting", "pending", "running", "succeeded"]
    assert bodies[-1]["job"]["id"] == job
    assert bodies[-1]["job"]["metadata"] == {"team": "nlp"}
    last = next(message for message in target.messages if "succeeded" in message.body)
    assert last.path == "/hook?x=1"
    signed = f"{last.headers['webhook-id']}.{last.headers['webhook-timestamp']}.{last.body}".encode()
    key = base64.b64decode(webhook["secret"].removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert last.headers["webhook-signature"] == expected
    assert {one["state"] for one in deliveries(world, webhook)} == {"delivered"}
    assert "secret" not in world.client.get(f"/v1/webhooks/{webhook['id']}").json()
    assert webhook["secret"] not in world.client.get("/v1/webhooks").text


def test_message_of_the_end_has_the_runtime_of_the_exit_record(world: World, target: Receiver) -> None:
    hook(world, target, statuses=["succeeded"])
    worker = world.start(world.submit())
    world.clock.advance(10)
    worker.end("completed")
    world.clock.advance(3600)
    world.tick()
    world.deliver_webhooks()
    (message,) = target.messages
    assert json.loads(message.body)["job"]["runtime_seconds"] == 10


def test_only_subscribed_statuses_and_jobs_are_delivered(world: World, target: Receiver) -> None:
    ada = world.new_user("user", "ada")
    own = {"url": f"http://127.0.0.1:{target.port}/own", "statuses": ["queued"]}
    every = {**own, "url": f"http://127.0.0.1:{target.port}/all", "jobs": "all"}
    for body in (own, every):
        assert ada.post("/v1/webhooks", json=body).status_code == 201
    world.submit()
    assert ada.post("/v1/jobs", json=SPEC).status_code == 201
    world.tick()
    world.deliver_webhooks()
    assert sorted(message.path for message in target.messages) == ["/all", "/all", "/own"]


def test_delivery_is_written_in_the_transaction_of_its_event(world: World, target: Receiver) -> None:
    webhook = hook(world, target)
    world.submit()
    before = len(deliveries(world, webhook))
    world.fail_at("submit.before-intent")
    with pytest.raises(SystemExit):
        world.tick()
    assert len(deliveries(world, webhook)) == before


@pytest.mark.databases("postgres")
def test_failed_delivery_is_retried_with_the_same_id(world: World, target: Receiver) -> None:
    webhook = hook(world, target, statuses=["queued"])
    world.submit()
    target.status = 503
    assert world.deliver_webhooks() == 1
    (waiting,) = deliveries(world, webhook)
    assert (waiting["state"], waiting["answer_status"], waiting["error"]) == ("waiting", 503, "answered 503")
    assert world.deliver_webhooks() == 0, "not before its time"
    target.status = 204
    world.clock.advance(RETRY_DELAYS[0].total_seconds())
    assert world.deliver_webhooks() == 1
    (done,) = deliveries(world, webhook)
    assert (done["state"], done["attempts"]) == ("delivered", 2)
    first, second = target.messages
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == done["id"]
    assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]


@pytest.mark.databases("postgres")
def test_failing_delivery_is_given_up_after_the_last_delay(world: World, target: Receiver) -> None:
    webhook = hook(world, target, statuses=["queued"])
    world.submit()
    target.status = 500
    for delay in (timedelta(), *RETRY_DELAYS):
        world.clock.advance(delay.total_seconds())
        assert world.deliver_webhooks() == 1
    (ended,) = deliveries(world, webhook)
    assert (ended["state"], ended["attempts"], ended["next_at"]) == ("given_up", len(RETRY_DELAYS) + 1, None)
    world.clock.advance(10 * 86_400)
    assert world.deliver_webhooks() == 0


def test_crash_after_sending_leads_to_a_second_delivery(world: World, target: Receiver) -> None:
    hook(world, target, statuses=["queued"])
    world.submit()
    world.fail_at("post.after-sending")
    with pytest.raises(SystemExit):
        world.deliver_webhooks()
    assert world.deliver_webhooks() == 1
    assert len({message.headers["webhook-id"] for message in target.messages}) == 1
    assert len(target.messages) == 2


@pytest.mark.databases("postgres")
def test_failures_disable_and_a_successful_test_enables(world: World, target: Receiver) -> None:
    webhook = hook(world, target, statuses=["queued"])
    target.status = 500
    for _ in range(20):
        world.submit()
        world.clock.advance(3 * 60 + 10)
        assert world.deliver_webhooks() >= 1
    shown = world.client.get(f"/v1/webhooks/{webhook['id']}").json()
    assert shown["disabled_at"] is not None
    (entry,) = world.client.get("/v1/audit?action=disable_webhook").json()["data"]
    assert (entry["actor"], entry["target"], entry["detail"]["failures"]) == ("service", webhook["id"], 20)
    assert {one["state"] for one in deliveries(world, webhook)} == {"given_up"}
    world.submit()
    world.clock.advance(86_400)
    assert world.deliver_webhooks() == 0, "nothing more is sent to it"
    target.status = 200
    assert world.client.post(f"/v1/webhooks/{webhook['id']}/test").status_code == 202
    assert world.deliver_webhooks() == 1
    shown = world.client.get(f"/v1/webhooks/{webhook['id']}").json()
    assert (shown["disabled_at"], shown["failures"]) == (None, 0)


def test_slow_receiver_does_not_delay_another(world: World, target: Receiver) -> None:
    with receiver() as slow:
        allow(world, f"127.0.0.1:{target.port}", f"127.0.0.1:{slow.port}")
        slow.seconds = 30.0
        late = hook(world, slow, statuses=["queued"])
        hook(world, target, statuses=["queued"])
        world.submit()
        world.submit()
        assert world.deliver_webhooks() == 3, "both of one, the first of the other"
        assert len(target.messages) == 2
        errors = [one["error"] for one in deliveries(world, late)]
    assert errors == [None, "no answer within 1 s"]


def test_tls_certificate_must_match_the_host_name(world: World, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "hooks.example")
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    with receiver(certificate) as target:
        for name, arrives in (("hooks.example", True), ("other.example", False)):
            allow(world, f"{name}:{target.port}")
            part_of(world.app_state).resolver = lambda _host, _port, _owner: ["127.0.0.1"]
            url = f"https://{name}:{target.port}/"
            answer = world.client.post("/v1/webhooks", json={"url": url, "statuses": ["queued"]})
            webhook = answer.json()
            assert answer.status_code == 201, answer.text
            world.client.post(f"/v1/webhooks/{webhook['id']}/test")
            sender = Sender(world.app_state.settings.webhook_allowed_hosts, part_of(world.app_state).resolver, trust)
            world.deliver_webhooks(sender)
            (done,) = deliveries(world, webhook)
            assert (done["state"] == "delivered") is arrives, done
            assert arrives or "certificate" in done["error"].lower()
        assert [message.headers["host"] for message in target.messages] == [f"hooks.example:{target.port}"]


@pytest.mark.databases("postgres")
def test_other_users_neither_see_nor_change_a_webhook(world: World, target: Receiver) -> None:
    ada, bob, eve = world.new_user("user", "ada"), world.new_user("user", "bob"), world.new_user("viewer", "eve")
    body = {"url": f"http://127.0.0.1:{target.port}/"}
    webhook = ada.post("/v1/webhooks", json=body).json()["id"]
    assert bob.get(f"/v1/webhooks/{webhook}").status_code == 404
    assert bob.delete(f"/v1/webhooks/{webhook}").status_code == 404
    assert bob.get("/v1/webhooks").json()["data"] == []
    assert eve.post("/v1/webhooks", json=body).status_code == 403
    assert [one["id"] for one in world.client.get("/v1/webhooks").json()["data"]] == [webhook]
    assert ada.delete(f"/v1/webhooks/{webhook}").status_code == 204
    assert ada.get(f"/v1/webhooks/{webhook}").status_code == 404


def test_number_of_webhooks_per_user_is_limited(world: World, target: Receiver) -> None:
    for _ in range(20):
        hook(world, target)
    answer = world.client.post("/v1/webhooks", json={"url": f"http://127.0.0.1:{target.port}/"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_many_webhooks")


def test_failing_receiver_of_one_user_delays_nobody_else(world: World, target: Receiver) -> None:
    anna = world.new_user("user", "anna")
    with receiver() as silent:
        allow(world, f"127.0.0.1:{target.port}", f"127.0.0.1:{silent.port}")
        silent.seconds = 30.0
        url = f"http://127.0.0.1:{silent.port}/hook"
        blocked = anna.post("/v1/webhooks", json={"url": url, "statuses": []}).json()
        for _ in range(20):
            assert anna.post(f"/v1/webhooks/{blocked['id']}/test").status_code == 202
        hook(world, target, statuses=["queued"])
        world.clock.advance(1)
        world.submit()
        assert world.deliver_webhooks() == 2
        assert len(target.messages) == 1, "the oldest messages of one user do not fill the run"
        assert world.deliver_webhooks() == 0, "all messages of the failing receiver wait, not only the first"
