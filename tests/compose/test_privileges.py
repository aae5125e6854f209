"""Privileges of the containers, and secrecy of their secrets."""

from pathlib import Path

import pytest

from tests.support.compose_stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.smoke, pytest.mark.timeout(1800)]

SERVICES_AS_ROOT = {"c1", "c2"}


def test_only_the_nodes_run_as_root(stack: Stack) -> None:
    as_root = set()
    for container in stack.containers():
        details = stack.inspect(container)
        if not details["State"]["Running"]:
            continue
        # The effective user in the kernel, independent of the settings.
        status = Path(f"/proc/{details['State']['Pid']}/status").read_text()
        if "\nUid:\t0\t" in status:
            as_root.add(details["Config"]["Labels"]["com.docker.compose.service"])
        assert not details["HostConfig"]["Privileged"]
        assert details["HostConfig"]["Memory"] > 0
        assert details["HostConfig"]["RestartPolicy"]["Name"] != "no"
        assert details["HostConfig"]["LogConfig"]["Config"]["max-size"]
    assert as_root == SERVICES_AS_ROOT


def test_service_can_write_only_to_its_own_folders(stack: Stack) -> None:
    for service in ("api", "reconciler"):
        assert stack.inspect(stack.containers(service)[0])["HostConfig"]["ReadonlyRootfs"]
        with pytest.raises(RuntimeError, match="Read-only file system"):
            stack.execute(service, "touch", "/opt/trainyard/x")


def test_secrets_are_absent_from_logs_processes_and_images(stack: Stack) -> None:
    folder = stack.folder / "docker" / "secrets"
    secrets = [
        (folder / name).read_text().strip()
        for name in ("postgres_password", "mariadb_password", "admin_token", "secrets_key")
    ]
    for container in stack.containers():
        shown = [stack.engine.run("docker", "inspect", container)]
        shown.append(stack.engine.run("sh", "-c", f"docker logs {container} 2>&1"))
        if stack.inspect(container)["State"]["Running"]:
            for process in stack.engine.run("docker", "top", container, "-o", "pid").split()[1:]:
                shown += [_read(process, "environ"), _read(process, "cmdline")]
        for secret in secrets:
            assert not any(secret in text for text in shown), container
    for name in ("service", "slurm-controller", "slurm-node"):
        history = stack.engine.run("docker", "history", "--no-trunc", f"trainyard-test-{name}")
        assert not any(secret in history for secret in secrets)


def _read(process: str, name: str) -> str:
    try:
        return Path(f"/proc/{process}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
