"""The form of tokens: an id to look up, a random secret, and a hash to compare with. Pure."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

from trainyard.contract.wire.access import Role as Role

NO_HASH = "0" * 64
"""No token's."""

_USER, _WORKER = "ty", "tyw"


@dataclass(frozen=True)
class ParsedToken:
    """A well-formed token; nothing is said about its being good."""

    kind: Literal["user", "worker"]
    id: str
    hash: str


def new_user_token() -> str:
    """256 bits of chance: as good against guessing as its hash is against theft, without a slow hash."""
    return f"{_USER}_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def new_worker_token(attempt_id: str) -> str:
    """Names its attempt, so that a look-up needs no second table."""
    return f"{_WORKER}_{attempt_id}_{secrets.token_urlsafe(32)}"


def bearer(authorization: str) -> str | None:
    """The token of a header, however that is spelt."""
    scheme, _, text = authorization.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def parse_token(text: str) -> ParsedToken | None:
    """None for anything that no token of ours looks like."""
    parts = text.split("_", 2)
    if len(parts) != 3 or parts[0] not in (_USER, _WORKER) or len(text) > 200 or not text.isascii():
        return None
    kind: Literal["user", "worker"] = "user" if parts[0] == _USER else "worker"
    return ParsedToken(kind=kind, id=parts[1], hash=hash_token(text))


def hash_token(text: str) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def constant_time_equal(one: str, other: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(one, other)
