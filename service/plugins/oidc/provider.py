"""The port to the provider: its metadata and keys, the exchange of a code, and the claims of a user.

Everything that the provider sends is bounded in size and time, and is checked before it is used. Its errors become
`ProviderError` here.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
import structlog

from service.plugins.oidc.errors import ProviderError, SignInFailedError
from trainyard.contract.base import sanitize
from trainyard.contract.bounds import parse_json
from trainyard.contract.local_paths import is_loopback

log = structlog.get_logger("oidc")

SECONDS = 10.0
"""Time limit of a request, from the look-up of the name to the last byte."""
MAX_BYTES = 256 * 1024
"""Maximum size of an answer."""
MAX_AGE = timedelta(hours=1)
"""How long metadata and keys are used before they are read again."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms of signatures that need the provider's private key. `none` and those of shared secrets are not among
them."""
_KEY_TYPES = ("RSA", "EC", "OKP")
_WELL_KNOWN = "/.well-known/openid-configuration"
_FORM = "application/x-www-form-urlencoded"
_MAX_LOGGED = 200


@dataclass(frozen=True)
class Metadata:
    """What the provider states about itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str
    """Empty: it has none."""
    end_session_endpoint: str
    """Empty: users cannot be signed out there."""
    algorithms: tuple[str, ...]
    """Its algorithms that the service accepts."""
    auth_method: str
    """How the service authenticates when it exchanges a code."""
    names_itself: bool
    """Whether it adds its issuer to the address to which it sends the browser back (RFC 9207)."""


@dataclass(frozen=True)
class Tokens:
    """What the provider has returned for a code."""

    id_token: str = field(repr=False)
    access_token: str = field(repr=False)


@dataclass
class Provider:
    """One provider. Requests go through the proxy of the environment, if there is one."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    _metadata: tuple[datetime, Metadata] | None = None
    _keys: tuple[datetime, Any] | None = None

    async def metadata(self, now: datetime) -> Metadata:
        """Return the provider's metadata. Raises ProviderError: they cannot be read, or belong to another issuer."""
        if self._metadata is None or now - self._metadata[0] >= MAX_AGE:
            status, document = await self._request("GET", f"{self.issuer.rstrip('/')}{_WELL_KNOWN}")
            if status != httpx.codes.OK:
                raise _unusable("its metadata are missing", "check TRAINYARD_OIDC_ISSUER", status=status)
            self._metadata = now, _read_metadata(document, self.issuer)
        return self._metadata[1]

    async def keys(self, now: datetime, *, anew: bool = False) -> Any:
        """Return the keys that verify signatures, a `KeySet` of joserfc.

        Args:
            anew: Read them again, as an ID token was signed with a key that is not among them.

        Raises:
            ProviderError: they cannot be read.
        """
        if anew or self._keys is None or now - self._keys[0] >= MAX_AGE:
            metadata = await self.metadata(now)
            status, document = await self._request("GET", metadata.jwks_uri)
            if status != httpx.codes.OK:
                raise _unusable("its keys are missing", "sign in again later", status=status)
            self._keys = now, _read_keys(document)
        return self._keys[1]

    async def exchange(self, code: str, verifier: str, redirect_uri: str, now: datetime) -> Tokens:
        """Return the tokens for a code.

        Raises:
            SignInFailedError: the code is used or expired, or belongs to another sign-in.
            ProviderError: the provider does not accept this service, or its answer cannot be used.
        """
        from authlib.oauth2.auth import ClientAuth

        metadata = await self.metadata(now)
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        client_id, secret = self.client_id, self.client_secret
        if metadata.auth_method == "client_secret_basic":
            client_id, secret = quote_plus(client_id), quote_plus(secret)  # RFC 6749, section 2.3.1
        authentication = ClientAuth(client_id, secret, metadata.auth_method)
        url, headers, body = authentication.prepare(
            "POST", metadata.token_endpoint, {"Content-Type": _FORM}, urlencode(fields)
        )
        status, document = await self._request("POST", url, headers=headers, content=body)
        if status != httpx.codes.OK:
            raise _refused_exchange(status, document)
        return _read_tokens(document)

    async def user_info(self, access_token: str, now: datetime) -> Mapping[str, Any]:
        """Return the claims of the user from the provider's endpoint for them; none if it has no such endpoint.

        Raises:
            ProviderError: they cannot be read.
        """
        metadata = await self.metadata(now)
        if not metadata.userinfo_endpoint or not access_token:
            return {}
        headers = {"Authorization": f"Bearer {access_token}"}
        status, document = await self._request("GET", metadata.userinfo_endpoint, headers=headers)
        if status != httpx.codes.OK or not isinstance(document, dict):
            raise _unusable("it does not state your name and groups", "sign in again later", status=status)
        return document

    async def _request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, content: str | None = None
    ) -> tuple[int, Any]:
        """Send a request, and return the status and the JSON document of the answer; None: it is not JSON."""
        sent = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        try:
            async with (
                asyncio.timeout(SECONDS),
                httpx.AsyncClient(verify=self._trust, follow_redirects=False, timeout=SECONDS) as client,
                client.stream(method, url, headers=sent, content=content) as response,
            ):
                status, body = response.status_code, await _read(response)
        except (TimeoutError, httpx.TimeoutException):
            raise _unreachable("it does not answer in time", f"no answer within {SECONDS:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            # The error has at most the address, never the body or a header.
            raise _unreachable("it cannot be reached", f"{type(error).__name__}: {error}") from None
        try:
            return status, parse_json(body, any_text=True)
        except (UnicodeDecodeError, ValueError):
            if status == httpx.codes.OK:
                raise _unusable("its answer is not JSON", "sign in again later", status=status) from None
            return status, None

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()


async def _read(response: httpx.Response) -> bytes:
    """Return the body of an answer, which is neither compressed nor longer than the limit."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _unusable("its answer is compressed", "sign in again later", status=response.status_code)
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_BYTES:
            raise _unusable("its answer is too long", "sign in again later", status=response.status_code)
    return body


def _read_metadata(document: Any, issuer: str) -> Metadata:
    """Return the metadata in a document.

    Raises:
        ProviderError: it lacks something, or is the document of another issuer.
    """
    if not isinstance(document, dict):
        raise _unusable("its metadata are not an object", "check TRAINYARD_OIDC_ISSUER")
    stated = document.get("issuer")
    if stated != issuer:
        log.error("the provider states another issuer", stated=_short(stated), expected=issuer)
        raise ProviderError(
            "the provider states another issuer than TRAINYARD_OIDC_ISSUER: an administrator must correct the setting, "
            "and finds both in the log of the service",
            code="other_issuer",
        )
    algorithms = document.get("id_token_signing_alg_values_supported", ["RS256"])
    accepted = tuple(one for one in ALGORITHMS if isinstance(algorithms, list) and one in algorithms)
    if not accepted:
        raise _unusable("it has none of the algorithms of signatures that the service accepts", "let it use RS256")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    known = [
        one for one in ("client_secret_basic", "client_secret_post") if isinstance(methods, list) and one in methods
    ]
    if not known:
        raise _unusable("it accepts no client secrets", "let it accept client_secret_basic")
    is_local = urlsplit(issuer).scheme == "http"
    return Metadata(
        issuer=issuer,
        authorization_endpoint=_endpoint(document, "authorization_endpoint", is_local=is_local),
        token_endpoint=_endpoint(document, "token_endpoint", is_local=is_local),
        jwks_uri=_endpoint(document, "jwks_uri", is_local=is_local),
        userinfo_endpoint=_endpoint(document, "userinfo_endpoint", is_local=is_local, required=False),
        end_session_endpoint=_endpoint(document, "end_session_endpoint", is_local=is_local, required=False),
        algorithms=accepted,
        auth_method=known[0],
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _endpoint(document: Mapping[str, Any], name: str, *, is_local: bool, required: bool = True) -> str:
    """Return the address of an endpoint: https, or http on this machine if the issuer is there too."""
    value = document.get(name)
    if value is None and not required:
        return ""
    try:
        url = urlsplit(value) if isinstance(value, str) and value.isascii() and value.isprintable() else None
        is_plain = url is not None and bool(url.hostname) and "@" not in url.netloc and not url.fragment
        is_safe = url is not None and (
            url.scheme == "https" or (is_local and url.scheme == "http" and is_loopback(url.hostname or ""))
        )
    except ValueError:
        is_plain = is_safe = False
    if not (is_plain and is_safe):
        raise _unusable(f"its metadata have no `{name}` that begins with https://", "check TRAINYARD_OIDC_ISSUER")
    return str(value)


def _read_keys(document: Any) -> Any:
    """Return the public keys in a document; keys of other kinds are left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    listed = document.get("keys") if isinstance(document, dict) else None
    keys = []
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, dict) or one.get("kty") not in _KEY_TYPES or one.get("use", "sig") != "sig":
            continue
        try:
            keys += KeySet.import_key_set({"keys": [one]}).keys
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise _unusable("it has no keys that the service can use", "sign in again later")
    return KeySet(keys)


def _read_tokens(document: Any) -> Tokens:
    answer = document if isinstance(document, dict) else {}
    id_token, access_token = answer.get("id_token"), answer.get("access_token", "")
    if not isinstance(id_token, str) or not id_token.isascii():
        raise _unusable("it does not state who has signed in", "check that TRAINYARD_OIDC_SCOPES contains `openid`")
    return Tokens(id_token, access_token if isinstance(access_token, str) and access_token.isascii() else "")


def _refused_exchange(status: int, document: Any) -> Exception:
    """Return the error about the answer to a code."""
    code = document.get("error") if isinstance(document, dict) else None
    log.warning("the provider refuses a code", status=status, error=_short(code))
    if code == "invalid_grant":
        return SignInFailedError("the sign-in took too long, or was used before: sign in again", code="invalid_grant")
    if code in ("invalid_client", "unauthorized_client"):
        return ProviderError(
            "the provider does not accept this service: an administrator must check TRAINYARD_OIDC_CLIENT_ID and the "
            "client secret",
            code="invalid_client",
        )
    return ProviderError("the provider has refused to finish the sign-in: sign in again later", code="exchange_refused")


def _unusable(what: str, remedy: str, *, status: int = 0) -> ProviderError:
    log.error("the provider cannot be used", reason=what, status=status)
    return ProviderError(f"the provider cannot be used, because {what}: {remedy}", code="provider_answer")


def _unreachable(what: str, reason: str) -> ProviderError:
    log.error("the provider cannot be reached", reason=_short(reason))
    message = f"the provider cannot be used, because {what}: sign in again later, or with a token"
    return ProviderError(message, code="provider_unreachable")


def _short(value: Any) -> str:
    """Return a text of a stranger for the log."""
    text = sanitize(str(value))
    return "".join(one if one.isprintable() else " " for one in text)[:_MAX_LOGGED]
