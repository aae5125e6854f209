"""What is told, signed, and told again."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta

from service.webhooks.signing import DELAYS, is_hopeless, message, new_secret, next_delay, signed_headers

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # The example of the standard's own documents.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    moment = datetime.fromtimestamp(1614265330, UTC)
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", '{"test": 2432232314}', moment)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-timestamp"] == "1614265330"


def test_a_receiver_can_verify_with_the_standard_library() -> None:
    secret, body = new_secret(), message("test", "dlv_1", NOW, {})
    headers = signed_headers(secret, "dlv_1", body, NOW)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == expected
    assert json.loads(body) == {"id": "dlv_1", "type": "test", "created_at": "2026-01-01T00:00:00.000Z"}


def test_it_is_tried_ever_more_seldom_and_then_no_more() -> None:
    assert list(DELAYS) == sorted(DELAYS)
    assert [next_delay(n) for n in (1, len(DELAYS), len(DELAYS) + 1)] == [DELAYS[0], DELAYS[-1], None]
    assert timedelta(hours=20) < sum(DELAYS, timedelta()) < timedelta(hours=24)


def test_only_many_failures_over_long_are_hopeless() -> None:
    hour = timedelta(hours=1)
    assert not is_hopeless(1000, NOW, NOW + hour / 2)
    assert not is_hopeless(19, NOW, NOW + hour)
    assert is_hopeless(20, NOW, NOW + hour)
