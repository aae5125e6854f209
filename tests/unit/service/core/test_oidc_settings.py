"""Settings of the sign-in by an OpenID provider: what is incomplete or unsafe ends the start."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.core.settings import Settings

ISSUER = "https://login.example.org/realms/science"
COMPLETE = {
    "oidc_issuer": ISSUER,
    "oidc_client_id": "trainyard",
    "oidc_client_secret": "of the provider",
    "oidc_role": "user",
}


def problems(**settings: Any) -> dict[str, str]:
    """Return the messages by setting."""
    with pytest.raises(ValidationError) as error:
        Settings(**settings)
    return {str(one["loc"][0]): one["msg"] for one in error.value.errors()}


def test_complete_settings_are_accepted() -> None:
    settings = Settings(**COMPLETE, oidc_group_roles="ml-admins=admin, a=b=user,a=b=viewer")
    assert settings.oidc_roles == {"ml-admins": "admin", "a=b": "user"}
    assert settings.oidc_issuer == ISSUER
    assert "of the provider" not in repr(settings)


def test_nothing_is_needed_without_a_provider() -> None:
    assert Settings().oidc_issuer == ""
    assert Settings(oidc_client_secret="", oidc_client_secret_file="", oidc_client_id="").oidc_client_secret is None


@pytest.mark.parametrize(
    ("missing", "setting", "remedy"),
    [
        ("oidc_client_id", "oidc_client_id", "set it to the id that the provider of TRAINYARD_OIDC_ISSUER gave"),
        ("oidc_client_secret", "oidc_client_secret_file", "name a file with the secret that the provider gave"),
        ("oidc_role", "oidc_group_roles", "nobody could sign in: set it, or TRAINYARD_OIDC_ROLE"),
    ],
)
def test_missing_setting_is_named_with_the_remedy(missing: str, setting: str, remedy: str) -> None:
    messages = problems(**{name: value for name, value in COMPLETE.items() if name != missing})
    assert list(messages) == [setting]
    assert remedy in messages[setting]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("oidc_client_id", "trainyard"),
        ("oidc_client_secret", "secret"),
        ("oidc_client_secret_file", "/etc/secret"),
        ("oidc_role", "user"),
        ("oidc_group_roles", "research=user"),
        ("oidc_email_domains", "example.org"),
    ],
)
def test_setting_without_a_provider_has_no_effect(name: str, value: str) -> None:
    assert "has no effect without TRAINYARD_OIDC_ISSUER" in problems(**{name: value})[name]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("oidc_issuer", "http://login.example.org", "must begin with https://"),
        ("oidc_issuer", "login.example.org", "is not a URL"),
        ("oidc_issuer", "https://user:password@login.example.org", "is not a URL"),
        ("oidc_issuer", "https://login.example.org/?x=1", "is not a URL"),
        ("oidc_issuer", "https://[", "is not a URL"),
        ("oidc_client_secret_file", "/etc/secret", "but not both"),
        ("oidc_scopes", "profile", "must contain `openid`"),
        ("oidc_group_roles", "research", "is not a group and its role"),
        ("oidc_group_roles", "research=root", "is not a group and its role"),
        ("oidc_group_roles", "=user", "is not a group and its role"),
        ("oidc_email_domains", "ada@example.org", "is not a domain"),
        ("oidc_email_domains", "*.example.org", "is not a domain"),
        ("oidc_session_hours", 0, "greater than 0"),
    ],
)
def test_unsafe_setting_is_refused(name: str, value: Any, message: str) -> None:
    assert message in problems(**{**COMPLETE, name: value})[name]


@pytest.mark.parametrize("issuer", ["http://localhost:8080/realm", "http://127.0.0.1:9000", "http://[::1]:9000"])
def test_provider_on_this_machine_needs_no_https(issuer: str) -> None:
    assert Settings(**{**COMPLETE, "oidc_issuer": issuer}).oidc_issuer == issuer


@pytest.mark.cpu_seconds(10)
def test_incomplete_settings_end_the_start(tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINYARD_STATE_DIR": str(tmp_path), "TRAINYARD_OIDC_ISSUER": ISSUER}
    done = subprocess.run(
        [sys.executable, "-m", "service", "serve"], env=environment, capture_output=True, text=True, timeout=60
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (2, 3)
    assert lines[0].startswith("TRAINYARD_OIDC_CLIENT_ID: is missing: set it to the id")
