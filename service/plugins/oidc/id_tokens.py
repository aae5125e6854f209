"""Verifies ID tokens: the signature, and the claims about the sign-in. Pure functions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from service.plugins.oidc.errors import ProviderError
from service.plugins.oidc.provider import Metadata, Tokens

LEEWAY_SECONDS = 60
"""How much the clocks of the provider and of the service may differ."""
MAX_LENGTH = 64 * 1024
MAX_SUBJECT = 255
"""Maximum length of a subject, by OpenID Connect."""


class UnknownKeyError(ProviderError):
    """The ID token was signed with a key that is not among the keys that are known."""

    code = "unknown_key"


def verify(
    tokens: Tokens, keys: Any, metadata: Metadata, *, client_id: str, nonce: str, now: datetime
) -> Mapping[str, Any]:
    """Return the claims of an ID token.

    Args:
        keys: The provider's keys, a `KeySet` of joserfc.
        nonce: The nonce of this sign-in.

    Raises:
        UnknownKeyError: its key is not among the keys.
        ProviderError: the signature or a claim is not valid.
    """
    # Imported at first use: many services have no provider.
    from authlib.oidc.core import CodeIDToken
    from joserfc import jwt
    from joserfc.errors import ClaimError, ExpiredTokenError, InvalidKeyIdError, JoseError

    if len(tokens.id_token) > MAX_LENGTH:
        raise _invalid("it is too long")
    try:
        token = jwt.decode(tokens.id_token, keys, algorithms=list(metadata.algorithms))
    except InvalidKeyIdError:
        message = "the provider has signed with a key that it does not publish: sign in again later"
        raise UnknownKeyError(message) from None
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise _invalid(f"its signature is not valid ({type(error).__name__})") from None
    expected = {"iss": {"essential": True, "value": metadata.issuer}, "aud": {"essential": True, "value": client_id}}
    parameters = {"client_id": client_id, "nonce": nonce, "access_token": tokens.access_token}
    claims = CodeIDToken(token.claims, token.header, options=expected, params=parameters)
    try:
        claims.validate(now=int(now.timestamp()), leeway=LEEWAY_SECONDS)
    except ExpiredTokenError:
        raise _invalid("it has expired; the clocks of the provider and of the service must agree") from None
    except ClaimError as error:
        raise _invalid(f"its claim `{error.claim}` is not valid") from None
    except (JoseError, ValueError, TypeError) as error:
        raise _invalid(f"its claims are not valid ({type(error).__name__})") from None
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise _invalid("its claim `sub` is not valid")
    return dict(claims)


def _invalid(reason: str) -> ProviderError:
    return ProviderError(
        f"the provider's statement about you cannot be trusted, because {reason}: sign in again, or ask an "
        "administrator",
        code="invalid_id_token",
    )
