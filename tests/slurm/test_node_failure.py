"""The failure of a node causes a continuation and uses no retry."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import slurm_service
from tests.slurm.specs import on_two_nodes
from tests.support.live import losses, wait_for_status
from tests.support.paced import SLOWLY, Pace
from tests.support.receiver import receiver
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.cli.partition_checks import check_nodes
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.slurm


@pytest.mark.fault_scenario(17)
@pytest.mark.parametrize("dead", ["node1", pytest.param("node2", marks=pytest.mark.slow)])
def test_node_failure_is_a_continuation_without_a_retry(
    dead: str, service: ServiceProcess, slurm: SlurmLab, pace: Pace
) -> None:
    with service.client() as client:
        pace.set(SLOWLY)
        job = client.submit(on_two_nodes(steps=120, restart={"max_retries": 0}), code=pace.code)
        wait_until(lambda: 10 in {saved.step for saved in client.checkpoints(job.id)}, 120, "its second checkpoint")
        slurm.stop_node(dead)
        try:
            wait_until(lambda: len(list(client.attempts(job.id))) == 2, 150, "a next attempt")
        finally:
            slurm.start_node(dead)
        pace.set(0)
        done = wait_for_status(client, job.id, "succeeded", "failed", seconds=200)
        assert done.status == "succeeded", done.status_message
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert first.exit_reason == "node_failure"
        assert f"{dead} is down: Not responding" in str(first.scheduler_end)
        assert (second.resumed_from_step or 0) >= 10
        assert sorted(losses(client, job.id)) == list(range(1, 121))


@contextmanager
def prolog_that_fails_once(slurm: SlurmLab) -> Iterator[None]:
    """Let the prolog of the first job fail on its node, which Slurm then drains."""
    prolog, before = slurm.conf.parent / "prolog", slurm.conf.read_text()
    prolog.write_text(f"#!/bin/sh\n! mkdir {slurm.conf.parent}/failed-prolog\n")
    prolog.chmod(0o755)
    slurm.conf.write_text(f"{before}\nProlog={prolog}\nPrologFlags=Alloc\n")
    slurm.run("scontrol", "reconfigure")
    try:
        yield
    finally:
        slurm.conf.write_text(before)
        slurm.run("scontrol", "reconfigure")
        for node in ("node1", "node2"):
            with suppress(RuntimeError):
                # Only a node that is drained can be resumed.
                slurm.run("scontrol", "update", f"nodename={node}", "state=resume")


def test_failing_prolog_moves_the_job_to_another_node(service: ServiceProcess, slurm: SlurmLab, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('done')")
    with service.client() as client, prolog_that_fails_once(slurm):
        job = client.submit(
            {"version": 1, "task": "script", "argv": ["train.py"], "gpus": 1, "restart": {"max_retries": 0}}, code=code
        )
        done = wait_for_status(client, job.id, "succeeded", "failed", "cancelled", seconds=200)
        assert done.status == "succeeded", done.status_message
        first, second = sorted(client.attempts(job.id), key=lambda attempt: attempt.number)
        assert first.exit_reason == "node_failure"
        assert "Prolog error" in str(first.scheduler_end)
        assert second.nodes != first.nodes


@contextmanager
def node_without(slurm: SlurmLab, node: str, folder: Path) -> Iterator[None]:
    """Let a node not see a folder, as if its filesystem were not mounted there."""
    slurm.stop_node(node)
    slurm.start_node(node, without=folder)
    wait_until(lambda: "idle" in slurm.run("sinfo", "-hNn", node, "-o", "%T"), 60, f"{node} to be idle")
    try:
        yield
    finally:
        slurm.cancel_all()
        slurm.stop_node(node)
        slurm.start_node(node)
        wait_until(lambda: "idle" in slurm.run("sinfo", "-hNn", node, "-o", "%T"), 60, f"{node} to be idle")


@pytest.mark.slow
def test_doctor_names_the_node_without_the_interpreter(service: ServiceProcess, slurm: SlurmLab) -> None:
    with node_without(slurm, "node2", Path(sys.prefix)), service.client() as client:
        by_node = {finding.name: finding for finding in check_nodes(client, 120)}
    assert {name: finding.state for name, finding in by_node.items()} == {"node node1": "ok", "node node2": "error"}
    assert "No such file or directory" in by_node["node node2"].message


def test_an_excluded_node_raises_an_alarm(slurm: SlurmLab, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").touch()
    resources = {"partition": "gpu", "gpus_per_node": 1}
    spec = {"task": "script", "argv": ["train.py"], "gpus": 1, "resources": resources}

    def alarms() -> list[dict[str, Any]]:
        messages = [json.loads(message.body) for message in received.messages]
        return [message["node"] for message in messages if message["type"] == "cluster.node_excluded"]

    with (
        receiver() as received,
        slurm_service(tmp_path, webhook_allowed_hosts=f"127.0.0.1:{received.port}") as service,
        service.client() as client,
        node_without(slurm, "node1", service.runs_dir),
    ):
        client.create_webhook(f"http://127.0.0.1:{received.port}/alarms", jobs="all")
        slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=repair")
        try:
            jobs = [client.submit({"name": name, **spec}, code=code).id for name in ("first", "second")]
            (alarm,) = wait_until(alarms, 120, "the alarm")
        finally:
            slurm.run("scontrol", "update", "nodename=node2", "state=resume")
        assert (alarm["node"], alarm["jobs"], alarm["cause"]) == ("node1", 2, "Slurm could not launch jobs there")
        for job in jobs:
            assert wait_for_status(client, job, "succeeded", "failed", seconds=120).status == "succeeded"
        third = client.submit({"name": "third", **spec}, code=code).id
        wait_for_status(client, third, "succeeded", seconds=120)
        assert len(list(client.attempts(third))) == 1, "it avoids the node"


@pytest.mark.fault_scenario(59)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_node_without_the_runs_fails_few_of_many_jobs(service: ServiceProcess, slurm: SlurmLab, tmp_path: Path) -> None:
    """All jobs are in Slurm's queue before the first one fails; the node would take one every half second."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('done')")
    resources = {"options": {"exclusive": True}}
    spec = {"version": 1, "task": "script", "argv": ["train.py"], "gpus": 1, "resources": resources}
    with service.client() as client, node_without(slurm, "node2", service.runs_dir):
        jobs = [client.submit(spec, code=code) for _ in range(10)]
        wait_until(lambda: client.cluster().excluded_nodes, 60, "the node to be excluded")
        (node,) = client.cluster().excluded_nodes
        assert (node.node, node.cause) == ("node2", "Slurm could not launch jobs there")
        for job in jobs:
            done = wait_for_status(client, job.id, "succeeded", "failed", "cancelled", seconds=400)
            assert done.status == "succeeded", done.status_message
        failed = [attempt for job in jobs for attempt in client.attempts(job.id) if attempt.failed_node]
        assert {attempt.failed_node for attempt in failed} == {"node2"}
        assert len(failed) <= 5
        client.include_node("node2")
        assert client.cluster().excluded_nodes == []
