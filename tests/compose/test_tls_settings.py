"""What compose.tls.yaml makes of the settings in .env, as Compose resolves them; no container is started."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.packages import install

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]


def resolve(**settings: str) -> "subprocess.CompletedProcess[str]":
    """Let Compose resolve both files."""
    if shutil.which("docker-compose") is None:
        install("Compose", "docker-compose")
    # A developer's own .env is left out.
    files = ["--project-directory", str(ROOT / "docker"), "-f", "compose.yaml", "-f", "compose.tls.yaml"]
    environment = {"PATH": os.environ["PATH"], "TRAINYARD_UID": "10001", "TRAINYARD_GID": "10001", **settings}
    command = ["docker-compose", *files, "config"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_tls_is_refused_without_a_public_url() -> None:
    refused = resolve()
    assert refused.returncode != 0
    assert "set it to https:// and a name of the certificate" in refused.stderr


@pytest.mark.parametrize(
    ("settings", "network", "proxies"),
    [
        ({}, "172.30.84", "172.30.84.250,"),
        ({"TRAINYARD_TLS_NETWORK": "10.7.7"}, "10.7.7", "10.7.7.250,"),
        ({"TRAINYARD_TRUSTED_PROXIES": "10.1.0.0/16"}, "172.30.84", "172.30.84.250,10.1.0.0/16"),
    ],
)
def test_proxy_is_trusted_and_workers_come_by_https(settings: dict[str, str], network: str, proxies: str) -> None:
    url, authority = "https://login1.example:8443", "/shared/ca.pem"
    done = resolve(TRAINYARD_PUBLIC_URL=url, TRAINYARD_WORKER_CA_FILE=authority, **settings)
    assert done.returncode == 0, done.stderr
    document = yaml.safe_load(done.stdout)
    for name in ("api", "reconciler"):
        environment = document["services"][name]["environment"]
        assert environment["TRAINYARD_TRUSTED_PROXIES"] == proxies
        assert environment["TRAINYARD_PUBLIC_URL"] == url
        assert environment["TRAINYARD_WORKER_CA_FILE"] == authority
        assert environment["TRAINYARD_BACKEND"] == "slurm"
    assert document["services"]["proxy"]["networks"]["front"]["ipv4_address"] == f"{network}.250"
    assert document["networks"]["front"]["ipam"]["config"] == [{"subnet": f"{network}.0/24"}]
