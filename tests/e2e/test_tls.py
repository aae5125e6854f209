"""A service behind nginx with the configuration of compose.tls.yaml: browsers, clients and workers come by https."""

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.live import run_of, wait_for_status
from tests.support.nginx import start_nginx
from tests.support.receiver import self_signed
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.demo import ServiceProcess, free_port

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

CONFIGURATION = Path(__file__).parents[2] / "docker" / "nginx.conf"


@contextmanager
def proxy(folder: Path, port: int, service: str, certificate: tuple[Path, Path]) -> Iterator[Path]:
    """Run nginx, and yield its log of requests."""
    requests, configuration = folder / "requests.log", folder / "nginx.conf"
    text = CONFIGURATION.read_text()
    for original, changed in {
        "/tmp/": f"{folder}/",
        "access_log off;": f"access_log {requests};",
        "listen 8443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/trainyard/certificate.pem": str(certificate[0]),
        "/run/secrets/tls_key": str(certificate[1]),
        "http://api:8470": service,
    }.items():
        assert original in text
        text = text.replace(original, changed)
    configuration.write_text(text)
    process = start_nginx(configuration)
    try:
        yield requests
    finally:
        process.terminate()
        process.wait(10)


def test_workers_and_clients_come_by_https(tmp_path: Path) -> None:
    certificate, port = self_signed(tmp_path, "localhost"), free_port()
    secure = f"https://localhost:{port}"
    settings = {"public_url": secure, "trusted_proxies": "127.0.0.1", "worker_ca_file": str(certificate[0])}
    service = ServiceProcess(tmp_path, local_slots="2", tick_seconds="0.3", **settings)
    with proxy(tmp_path, port, service.url, certificate) as requests:
        service.start()
        try:
            with service.client() as client:
                trust = ssl.create_default_context(cafile=certificate[0])
                check_answers(secure, trust, admin_token_file(service.state_dir).read_text().strip())
                run_job(client, service.runs_dir, secure)
        finally:
            service.stop()
        reported = re.findall(r'"POST /v1/attempts/\w+/(\w+)[^"]* HTTP/1.1" 200 ', requests.read_text())
    assert {"claim", "metrics", "checkpoints", "logs", "finish"} <= set(reported)


def check_answers(secure: str, trust: ssl.SSLContext, token: str) -> None:
    wait_until(lambda: "ready" if _answers(secure, trust) else None, 20, "nginx to listen")
    answer = httpx.get(f"{secure}/v1/jobs", headers={"Authorization": f"Bearer {token}"}, verify=trust)
    assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=15552000")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{secure}/livez")


def _answers(secure: str, trust: ssl.SSLContext) -> bool:
    try:
        return httpx.get(f"{secure}/livez", verify=trust).status_code == 200
    except httpx.TransportError:
        return False


def run_job(client: Client, runs: Path, secure: str) -> None:
    job = client.submit(fill_template("mlp_parity", {"steps": 10, "epochs": None, "checkpoint.every_steps": 5}))
    done = wait_for_status(client, job.id, "succeeded", "failed")
    assert done.status == "succeeded", done.status_message
    (attempt,) = run_of(runs, job.id).attempts.iterdir()
    assert LaunchDocument.model_validate_json((attempt / "launch.json").read_bytes()).service_url == secure
