"""The format of tokens: an id for the lookup, a random secret, and a hash to compare with. Pure functions."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from service.db.models import Token
from trainyard.contract.wire.access import Role as Role

NO_HASH = "0" * 64
"""A hash that belongs to no token."""

_USER, _WORKER = "ty", "tyw"


@dataclass(frozen=True)
class ParsedToken:
    """A well-formed token, which may still be invalid."""

    kind: Literal["user", "worker"]
    id: str
    hash: str


def new_user_token(token_id: str | None = None) -> str:
    """Return a new API token. Its secret has 256 random bits, so that a fast hash of it is safe to store.

    Args:
        token_id: The id of a token whose secret is replaced; None: a new id.
    """
    return f"{_USER}_{token_id or secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"


def new_token(*, name: str, role: Role, now: datetime, **values: Any) -> tuple[Token, str]:
    """Return a row for a new token, and the token; `values`: further columns."""
    text = new_user_token()
    parsed = parse_token(text)
    assert parsed is not None
    return Token(id=parsed.id, hash=parsed.hash, name=name, role=role, created_at=now, **values), text


def new_worker_token(attempt_id: str) -> str:
    """Return a new attempt token. It contains the attempt's id, so that the lookup needs no second table."""
    return f"{_WORKER}_{attempt_id}_{secrets.token_urlsafe(32)}"


def bearer(authorization: str) -> str | None:
    """Return the token of an `Authorization` header; None if the scheme is not `Bearer`, in any case."""
    scheme, _, text = authorization.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def parse_token(text: str) -> ParsedToken | None:
    """Parse a token; None if it is not well-formed."""
    parts = text.split("_", 2)
    if len(parts) != 3 or parts[0] not in (_USER, _WORKER) or len(text) > 200 or not text.isascii():
        return None
    kind: Literal["user", "worker"] = "user" if parts[0] == _USER else "worker"
    return ParsedToken(kind=kind, id=parts[1], hash=hash_token(text))


def hash_token(text: str) -> str:
    """Return the SHA-256 of a token in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def constant_time_equal(one: str, other: str) -> bool:
    """Compare two strings in constant time."""
    return hmac.compare_digest(one, other)
