"""Sign-in by munge, by code and by a provider: requests and responses, and the message that a credential carries."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints

from trainyard.contract.base import EXAMPLE_LATER, Resource, Strict, Timestamp, example
from trainyard.contract.local_paths import is_loopback
from trainyard.contract.validation_messages import CREDENTIAL_PATTERN

MAX_CREDENTIAL = 4096
"""Maximum length of a credential. A message of `sign_in_message` takes a few hundred characters."""

_PURPOSE = "trainyard sign-in 1"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class NonceResource(Resource):
    """A nonce for a single sign-in."""

    object: Literal["sign_in_nonce"] = "sign_in_nonce"
    nonce: str = Field(examples=["MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"])
    expires_at: Timestamp = Field(examples=[EXAMPLE_LATER])


class SignInCodeResource(Resource):
    """A code that signs a browser in, once."""

    object: Literal["sign_in_code"] = "sign_in_code"
    code: Annotated[str, Field(repr=False)] = Field(examples=["QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY"])
    """The browser takes it from the fragment of `/sign-in#code=CODE&next=PATH`. Returned only here."""
    expires_at: Timestamp = Field(examples=[EXAMPLE_LATER])


class SignInRequest(Strict):
    """The body of `POST /v1/sign-in/munge`."""

    model_config = example(nonce="MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY", credential="MUNGE:AwQFAACj:")

    nonce: Annotated[str, StringConstraints(min_length=20, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")]
    """The nonce of `POST /v1/sign-in/nonces`, requested from the same address."""
    credential: Annotated[
        str, StringConstraints(max_length=MAX_CREDENTIAL, pattern=CREDENTIAL_PATTERN), Field(repr=False)
    ]
    """The credential that `munge` made of the message about the nonce and the service's URL."""


class ProgramCodeRequest(Strict):
    """The body of `POST /v1/sign-in/tokens`."""

    model_config = example(code="QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY")

    code: Annotated[str, StringConstraints(min_length=20, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")] = Field(
        repr=False
    )
    """The code that the browser shows. It works once, for five minutes."""


class OidcUserRequest(Strict):
    """The body of `PUT /v1/oidc-users/{oidc_user}`."""

    model_config = example(subject="f3b1c2d4-0000-4000-8000-000000000001")

    subject: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    """The subject (`sub`) at the provider that signs in as this user from now on. Absent: it stays."""
    disabled: bool = False
    """Whether the user is refused at sign-in. The tokens of earlier sign-ins are revoked."""


class OidcUserResource(Resource):
    """A user whose name belongs to a subject of an OpenID provider."""

    object: Literal["oidc_user"] = "oidc_user"
    name: str
    issuer: str = Field(examples=["https://login.example.org"])
    subject: str = Field(examples=["f3b1c2d4-0000-4000-8000-000000000001"])
    created_at: Timestamp
    signed_in_at: Timestamp | None = None
    """Time of the last sign-in."""
    disabled_at: Timestamp | None = None


def audience(url: str, host_name: str) -> str:
    """Return the service that a URL names, as credentials state it.

    A loopback address means another service on each machine, so it is stated with the name of the machine.

    Raises:
        ValueError: the URL has no host, or an invalid port.
    """
    parsed = urlsplit(url)
    if not parsed.hostname:
        raise ValueError(f"{url!r} has no host")
    host = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
    if is_loopback(parsed.hostname):
        host = f"loopback@{host_name.lower()}"
    port = parsed.port or _DEFAULT_PORTS.get(parsed.scheme, 0)
    return f"{parsed.scheme}://{host}:{port}{parsed.path.rstrip('/')}"


def sign_in_message(url: str, host_name: str, nonce: str) -> bytes:
    """Return the message of the credential for a sign-in.

    Args:
        url: The URL at which the client reaches the service. It must never come from the service itself: a program that
            pretends to be a service could name the URL of another service, and sign in there with the credential.
        host_name: Name of the machine.
    """
    return f"{_PURPOSE}\n{audience(url, host_name)}\n{nonce}\n".encode()
