"""The check of `trainyard doctor`: whether the provider can be used."""

from typing import Any

import pytest

from service.plugins.oidc.plugin import provider
from tests.support.oidc_portal import SERVICE
from tests.support.oidc_provider import provider_settings
from tests.support.oidc_signer import Signer
from tests.support.shared_parts import SettingsWithoutEnvironment


def settings_of(signer: Signer, **changes: Any) -> SettingsWithoutEnvironment:
    return SettingsWithoutEnvironment(**{**provider_settings(signer.url, SERVICE), **changes})


def test_provider_that_answers_is_named_with_the_redirect_uri(signer: Signer) -> None:
    finding = provider(settings_of(signer))
    assert (finding.state, finding.name) == ("ok", "oidc")
    assert finding.message == f"{signer.url} answers; register {SERVICE}/sign-in/oidc/callback there"


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys"])
def test_provider_that_cannot_be_used_is_an_error(signer: Signer, path: str) -> None:
    signer.answers[path] = (500, b"", {})
    finding = provider(settings_of(signer))
    assert finding.state == "error"
    assert "TRAINYARD_OIDC_ISSUER" in (finding.fix or "")


def test_missing_file_with_the_secret_is_an_error(signer: Signer) -> None:
    finding = provider(settings_of(signer, oidc_client_secret=None, oidc_client_secret_file="/missing/secret"))
    assert (finding.state, "/missing/secret cannot be read" in finding.message) == ("error", True)


def test_service_without_a_provider_needs_no_check() -> None:
    assert provider(SettingsWithoutEnvironment()).state == "ok"
