"""Signatures and retries of webhook deliveries. Pure functions.

The format follows Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature` over
`id.timestamp.body`, so that its libraries can verify the deliveries.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import datetime, timedelta

_KEY_PREFIX = "whsec_"
RETRY_DELAYS = tuple(timedelta(seconds=s) for s in (10, 60, 300, 1800, 7200, 21_600, 43_200))
"""Delays between attempts; after the last attempt a delivery is given up."""
MIN_FAILURES, MIN_FAILURE_TIME = 20, timedelta(hours=1)
"""A webhook is disabled after this many failures in a row over at least this time, longer than a restart takes."""


def new_secret() -> str:
    """Return a random secret of 256 bits, in base64 with a prefix."""
    return _KEY_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signed_headers(secret: str, delivery_id: str, body: str, now: datetime) -> dict[str, str]:
    """Return the headers of a delivery that is sent now."""
    timestamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix(_KEY_PREFIX))
    digest = hmac.new(key, f"{delivery_id}.{timestamp}.{body}".encode(), hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "trainyard-webhooks",
        "webhook-id": delivery_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def next_delay(attempts: int) -> timedelta | None:
    """Return the delay after this many failed attempts; None: give up."""
    return RETRY_DELAYS[attempts - 1] if attempts <= len(RETRY_DELAYS) else None


def should_disable(failures: int, failing_since: datetime, now: datetime) -> bool:
    """Whether a webhook has failed so often and for so long that nothing more is sent to it."""
    return failures >= MIN_FAILURES and now - failing_since >= MIN_FAILURE_TIME
