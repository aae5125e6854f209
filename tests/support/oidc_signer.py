"""An OpenID provider that states whatever a test wants: the faults that no real provider shows."""

import base64
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from tests.support.oidc_provider import CLIENT_ID

_PAUSE_SECONDS = 0.05
SUBJECT = "subject-1"
Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""


@cache
def _rsa(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


@dataclass
class Signer:
    """What the provider answers, which a test changes between requests."""

    url: str
    now: datetime
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims that replace or extend those of a valid ID token; None removes one."""
    header: dict[str, Any] = field(default_factory=lambda: {"alg": "RS256", "kid": "one"})
    keys: dict[str, RSAKey | ECKey] = field(default_factory=lambda: {"one": _rsa("one")})
    """The keys by id, all of which it publishes."""
    drips: set[str] = field(default_factory=set)
    """Paths whose answers come byte by byte, with a pause after each."""
    unpublished: set[str] = field(default_factory=set)
    """Ids of keys that it does not publish."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Metadata that replace or extend the valid ones; None removes one."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """Answers by path that replace the valid ones."""
    id_token: str | None = None
    """An ID token that replaces the valid one."""
    user_info: dict[str, Any] | None = None
    requests: list[str] = field(default_factory=list)
    """The paths of the requests."""
    exchanges: list[dict[str, str]] = field(default_factory=list)
    """The forms of the requests for tokens."""
    nonces: dict[str, str] = field(default_factory=dict)
    """Nonces by code."""
    used: set[str] = field(default_factory=set)

    def authorize(self, location: str) -> dict[str, str]:
        """Return the parameters by which the provider sends a browser back that was sent to this address."""
        sent = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        code = f"code-{len(self.nonces)}"
        self.nonces[code] = sent["nonce"]
        return {"state": sent["state"], "code": code}

    def sign(self, nonce: str) -> str:
        """Return an ID token of the claims."""
        seconds = int(self.now.timestamp())
        valid = {"iss": self.url, "sub": SUBJECT, "aud": CLIENT_ID, "exp": seconds + 300, "iat": seconds}
        claims = {**valid, "nonce": nonce, "preferred_username": "ada", "groups": ["research"], **self.claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.header["alg"] in ("HS256", "none"):
            return self._without_private_key(claims)
        key = self.keys.get(self.header.get("kid", "one"), self.keys["one"])
        return jwt.encode(self.header, claims, key, algorithms=[self.header["alg"]])

    def _without_private_key(self, claims: dict[str, Any]) -> str:
        """Return what anybody can sign: with the public key as the secret, or not at all."""
        parts = [_encode(json.dumps(part).encode()) for part in (self.header, claims)]
        secret = self.keys["one"].as_pem(private=False)
        signature = hmac.digest(secret, ".".join(parts).encode(), "sha256") if self.header["alg"] == "HS256" else b""
        return ".".join((*parts, _encode(signature)))

    def answer(self, path: str, form: dict[str, str]) -> Answer:
        """Return the answer to a request."""
        self.requests.append(path)
        if path in self.answers:
            return self.answers[path]
        if path == "/.well-known/openid-configuration":
            valid = {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "userinfo_endpoint": f"{self.url}/userinfo",
                "end_session_endpoint": f"{self.url}/end",
                "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
            }
            return _json({name: value for name, value in {**valid, **self.metadata}.items() if value is not None})
        if path == "/keys":
            published = [key for id_, key in self.keys.items() if id_ not in self.unpublished]
            return _json(KeySet(list(published)).as_dict(private=False))
        if path == "/token":
            return self._exchange(form)
        if path == "/userinfo":
            return _json(self.user_info or {"sub": self.claims.get("sub", SUBJECT)})
        return 404, b"{}", {}

    def _exchange(self, form: dict[str, str]) -> Answer:
        self.exchanges.append(form)
        code = form.get("code", "")
        if code not in self.nonces or code in self.used:
            return 400, b'{"error": "invalid_grant", "error_description": "used"}', {}
        self.used.add(code)
        id_token = self.id_token if self.id_token is not None else self.sign(self.nonces[code])
        return _json({"access_token": "access-secret", "token_type": "Bearer", "id_token": id_token})


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _json(document: Any) -> Answer:
    return 200, json.dumps(document).encode(), {}


@contextmanager
def running_signer(now: datetime) -> Iterator[Signer]:
    """Run the provider."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer({**form, "authorization": self.headers.get("authorization", "")})

        def _answer(self, form: dict[str, str]) -> None:
            path = urlsplit(self.path).path
            status, body, headers = signer.answer(path, form)
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if path not in signer.drips:
                self.wfile.write(body)
                return
            with suppress(OSError):  # the client has closed the connection
                for byte in body:
                    self.wfile.write(bytes((byte,)))
                    self.wfile.flush()
                    pause.wait(_PAUSE_SECONDS)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing to the output of the tests."""

    pause = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    signer = Signer(f"http://127.0.0.1:{server.server_port}", now)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield signer
    finally:
        pause.set()
        server.shutdown()
        server.server_close()
