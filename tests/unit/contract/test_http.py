"""Who answered a request, and which certificate authorities a client and a worker trust."""

import ssl
from pathlib import Path
from unittest.mock import patch

import certifi
import httpx
import pytest

from trainyard.contract.http import describe_foreign, describe_tls_error, trust
from worker.reporting.service_client import ServiceClient

URL = "https://yard.example"


@pytest.mark.parametrize(
    ("status", "headers", "cause"),
    [
        (413, {"Server": "nginx/1.22.1"}, "(Server: nginx/1.22.1) with 413: a proxy limits the size of requests"),
        (502, {}, "with 502: a proxy does not reach the service"),
        (504, {}, "has not received an answer of the service in time"),
        (418, {}, "with 418: a proxy, or another program, answers there"),
        (307, {"Location": "https://sso.example/login"}, "it redirects to https://sso.example/login"),
        (200, {}, "the sign-in page of a network"),
    ],
)
def test_likely_cause_is_named_by_status(status: int, headers: dict[str, str], cause: str) -> None:
    request = httpx.Request("POST", "http://ada:secret@yard.example/v1/jobs?token=secret")
    text = describe_foreign(httpx.Response(status, headers=headers, text="<html>", request=request))
    assert text.startswith("http://yard.example/v1/jobs was answered by something other than Trainyard")
    assert cause in text
    assert "secret" not in text


def test_untrusted_certificate_names_the_files_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/site/ca.pem")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")
    text = describe_tls_error(error) or ""
    assert "the trusted authorities are SSL_CERT_FILE=/site/ca.pem and those of this machine" in text
    assert "TRAINYARD_WORKER_CA_FILE" in text
    assert describe_tls_error(httpx.ConnectError("[Errno 111] Connection refused")) is None


def test_configured_ca_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, end = (
        Path(certifi.where()).read_text().split("-----END CERTIFICATE-----", 1)[0],
        "-----END CERTIFICATE-----\n",
    )
    own = tmp_path / "own.pem"
    own.write_text(first[first.index("-----BEGIN") :] + end)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert len(trust(URL).get_ca_certs()) == 1


def test_public_cas_are_trusted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert len(trust(URL).get_ca_certs()) > 50


@pytest.mark.parametrize(("scheme", "times"), [("http", 0), ("https", 1)])
def test_authorities_are_read_only_for_tls(scheme: str, times: int) -> None:
    with patch("ssl.create_default_context", wraps=ssl.create_default_context) as read:
        ServiceClient(f"{scheme}://yard.example", "a1", "token").close()
    assert read.call_count == times
