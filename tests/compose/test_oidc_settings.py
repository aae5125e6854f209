"""What compose.oidc.yaml makes of the settings in .env, as Compose resolves them; no container is started."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from service.core.settings import Settings
from tests.support.packages import install

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]
GIVEN = {"TRAINYARD_OIDC_ISSUER": "https://login.example.org", "TRAINYARD_OIDC_CLIENT_ID": "trainyard"}


def resolve(**settings: str) -> "subprocess.CompletedProcess[str]":
    """Let Compose resolve both files."""
    if shutil.which("docker-compose") is None:
        install("Compose", "docker-compose")
    # A developer's own .env is left out.
    files = ["--project-directory", str(ROOT / "docker"), "-f", "compose.yaml", "-f", "compose.oidc.yaml"]
    environment = {"PATH": os.environ["PATH"], "TRAINYARD_UID": "10001", "TRAINYARD_GID": "10001", **settings}
    command = ["docker-compose", *files, "config"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_provider_is_refused_without_its_issuer() -> None:
    refused = resolve()
    assert refused.returncode != 0
    assert "set it to the issuer of your provider" in refused.stderr


def test_service_gets_all_settings_and_the_secret_as_a_file() -> None:
    done = resolve(**GIVEN, TRAINYARD_OIDC_ROLE="viewer")
    assert done.returncode == 0, done.stderr
    document = yaml.safe_load(done.stdout)
    for name in ("api", "reconciler"):
        service = document["services"][name]
        given = {key for key in service["environment"] if key.startswith("TRAINYARD_OIDC_")}
        known = {f"TRAINYARD_{field}".upper() for field in Settings.model_fields if field.startswith("oidc_")}
        assert given == known - {"TRAINYARD_OIDC_CLIENT_SECRET"}
        sources = {one if isinstance(one, str) else one["source"] for one in service["secrets"]}
        assert sources == {"postgres_password", "admin_token", "secrets_key", "oidc_client_secret"}
