"""What is told, how it is signed, and when it is told again. Pure.

The form is that of Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature` over
`id.timestamp.body`, so that libraries for it verify our messages.
"""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from trainyard.contract.base import wire_time

_PREFIX = "whsec_"
DELAYS = tuple(timedelta(seconds=s) for s in (10, 60, 300, 1800, 7200, 21_600, 43_200))
"""Between one attempt and the next; after the last one a message is given up."""
DISABLE_AFTER, DISABLE_OVER = 20, timedelta(hours=1)
"""So many failures in a row, over so long: a receiver that restarts stays told."""


def new_secret() -> str:
    """256 bits."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def message(kind: str, delivery_id: str, now: datetime, about: Mapping[str, Any]) -> str:
    """The body, as it is signed and sent."""
    return json.dumps({"id": delivery_id, "type": kind, "created_at": wire_time(now), **about}, separators=(",", ":"))


def signed_headers(secret: str, delivery_id: str, body: str, now: datetime) -> dict[str, str]:
    """The headers with which a message goes out now."""
    stamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    digest = hmac.new(key, f"{delivery_id}.{stamp}.{body}".encode(), hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "trainyard-webhooks",
        "webhook-id": delivery_id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def next_delay(attempts: int) -> timedelta | None:
    """After so many attempts that failed; None: it is given up."""
    return DELAYS[attempts - 1] if attempts <= len(DELAYS) else None


def is_hopeless(failures: int, failing_since: datetime, now: datetime) -> bool:
    """Whether a webhook has failed so often and for so long that it is told nothing more."""
    return failures >= DISABLE_AFTER and now - failing_since >= DISABLE_OVER
