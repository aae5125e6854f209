"""Signatures, bodies and retries of webhook deliveries."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta

from service.plugins.webhooks.outbox import delivery_body
from service.plugins.webhooks.signing import RETRY_DELAYS, new_secret, next_delay, should_disable, signed_headers

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_signature_matches_the_standard_webhooks_example() -> None:
    # The example in the documentation of Standard Webhooks.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    sent_at = datetime.fromtimestamp(1614265330, UTC)
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", '{"test": 2432232314}', sent_at)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-timestamp"] == "1614265330"


def test_receiver_can_verify_with_the_standard_library() -> None:
    secret, body = new_secret(), delivery_body("dlv_1", "test", NOW, {})
    headers = signed_headers(secret, "dlv_1", body, NOW)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == expected
    assert json.loads(body) == {"id": "dlv_1", "type": "test", "created_at": "2026-01-01T00:00:00.000Z"}


def test_retry_delays_grow_for_about_a_day_and_then_end() -> None:
    assert list(RETRY_DELAYS) == sorted(RETRY_DELAYS)
    assert [next_delay(n) for n in (1, len(RETRY_DELAYS), len(RETRY_DELAYS) + 1)] == [
        RETRY_DELAYS[0],
        RETRY_DELAYS[-1],
        None,
    ]
    assert timedelta(hours=20) < sum(RETRY_DELAYS, timedelta()) < timedelta(hours=24)


def test_a_webhook_is_disabled_after_many_failures_over_an_hour() -> None:
    hour = timedelta(hours=1)
    assert not should_disable(1000, NOW, NOW + hour / 2)
    assert not should_disable(19, NOW, NOW + hour)
    assert should_disable(20, NOW, NOW + hour)
