"""A real OpenID provider, npm's `oidc-provider`, and a visitor who signs in there without a browser."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx

from tests.support.web_check import BUILD, install, node_and_npm

CLIENT_ID = "trainyard tests"
CLIENT_SECRET = "a secret: with & of + the tests"
"""With characters that have to be escaped."""
USERS: Mapping[str, Mapping[str, Any]] = {
    "ada": {
        "preferred_username": "ada",
        "groups": ["research", "ml-admins"],
        "email": "ada@example.org",
        "email_verified": True,
    },
    "bob": {"preferred_username": "bob", "groups": ["research"], "email": "bob@example.org", "email_verified": True},
    "eve": {"preferred_username": "eve", "groups": ["staff"], "email": "eve@other.example", "email_verified": True},
    "mallory": {"preferred_username": "Bob", "groups": ["research"], "email": "m@example.org", "email_verified": True},
    "zoe": {"preferred_username": "zoe", "groups": [], "email": "zoe@example.org", "email_verified": True},
}
"""The claims of the provider's users by the names that they type; the subject is the typed name."""
_MAX_STEPS = 15
_FORM = re.compile(r'<form[^>]*action="([^"]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@dataclass(frozen=True)
class RealProvider:
    """A running provider. It is on another site than the service: `localhost`, and not `127.0.0.1`."""

    issuer: str
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings of a service that uses it."""


@contextmanager
def running_provider(service_url: str, users: Mapping[str, Any] = USERS) -> Iterator[RealProvider]:
    """Run the provider for a service with this URL."""
    node, npm = node_and_npm()
    install(npm)
    port = free_port()
    client = {
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
        "redirect_uris": [f"{service_url}/sign-in/oidc/callback"],
        "post_logout_redirect_uris": [f"{service_url}/sign-in"],
        "response_types": ["code"],
        "grant_types": ["authorization_code"],
    }
    configuration = {
        "modules": str(BUILD / "node_modules"),
        "port": port,
        "users": {**users},
        "client": client,
        "keys": [_private_key()],
    }
    program = Path(__file__).with_name("oidc_provider.mjs")
    process = subprocess.Popen(
        [*node, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(configuration) + "\n")
        process.stdin.flush()
        # Node writes notes about a new installation before the line.
        assert any(line.strip() == "listening" for line in process.stdout), "the provider does not start"
        issuer = f"http://localhost:{port}"
        yield RealProvider(issuer, provider_settings(issuer, service_url))
    finally:
        process.kill()
        process.wait()


def provider_settings(issuer: str, service_url: str) -> dict[str, Any]:
    """Return the settings of a service with this URL that uses a provider."""
    return {
        "public_url": service_url,
        "oidc_issuer": issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_scopes": "openid profile email groups",
        "oidc_group_roles": ("ml-admins=admin", "research=user", "staff=viewer"),
        "oidc_label": "Example",
    }


def _private_key() -> dict[str, Any]:
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "tests"})
    return {**key.as_dict(private=True)}


def sign_in_at_provider(address: str, user: str, service_url: str) -> str:
    """Sign in with a new browser, and return the address at the service to which the provider sends it back."""
    with httpx.Client(follow_redirects=False, timeout=20) as browser:
        answer = browser.get(address)
        for _ in range(_MAX_STEPS):
            if answer.is_redirect:
                address = urljoin(str(answer.url), answer.headers["location"])
                if address.startswith(f"{service_url}/"):
                    return address
                answer = browser.get(address)
                continue
            form = _FORM.search(answer.text)
            assert form is not None, answer.text
            fields = {**dict(_HIDDEN.findall(answer.text)), "login": user, "password": "any"}
            answer = browser.post(urljoin(str(answer.url), form[1]), data=fields)
    raise AssertionError(f"the provider does not send the browser back: {answer.text[-1000:]}")
