"""Each preset completes with `trainyard submit <preset>`, on any machine."""

import os
import subprocess
import sys
import tempfile

import pytest

from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.templates import template_names
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    process = ServiceProcess(tmp_path_factory.mktemp("service"))
    process.start()
    with process.client():
        yield process
    process.stop()


@pytest.mark.parametrize("name", template_names())
def test_preset_completes(service, name):
    token = admin_token_file(service.state_dir).read_text().strip()
    env = {**os.environ, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token}
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-c", "from trainyard.cli import main; main()", "submit", name, "--watch"]
        status = subprocess.run(command, env=env, stdout=output, stderr=output, timeout=600).returncode
        output.seek(0)
        assert status == 0, output.read()[-3000:]
