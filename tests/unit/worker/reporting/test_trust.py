"""The certificate authorities that a worker trusts."""

import ssl
from pathlib import Path
from unittest.mock import patch

import certifi
import pytest

from worker.reporting.service_client import ServiceClient, _trusted


def test_configured_ca_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, end = (
        Path(certifi.where()).read_text().split("-----END CERTIFICATE-----", 1)[0],
        "-----END CERTIFICATE-----\n",
    )
    own = tmp_path / "own.pem"
    own.write_text(first[first.index("-----BEGIN") :] + end)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert len(_trusted().get_ca_certs()) == 1


def test_public_cas_are_trusted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert len(_trusted().get_ca_certs()) > 50


@pytest.mark.parametrize(("scheme", "times"), [("http", 0), ("https", 1)])
def test_authorities_are_read_only_for_tls(scheme: str, times: int) -> None:
    with patch("ssl.create_default_context", wraps=ssl.create_default_context) as read:
        ServiceClient(f"{scheme}://yard.example", "a1", "token").close()
    assert read.call_count == times
