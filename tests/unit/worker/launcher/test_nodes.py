import os
import socket
from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.sections import Restart, WarningSignal
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from worker.launcher import torchrun
from worker.launcher.nodes import Node, Rendezvous, await_rendezvous, publish, this_node

SPEC = {
    "task": "regression",
    "steps": 1,
    "gpus": 4,
    "batch": {"size": 4},
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
}


def document(**changes):
    plain = {
        "job_id": "job-1",
        "attempt_id": "a1",
        "attempt": 1,
        "tag": "ty-main-a1",
        "service_url": "http://127.0.0.1:1",
        "execution": 3,
        "max_restarts": 1,
        "nodes": 2,
        "ranks_per_node": 2,
        "spec": parse_spec(SPEC),
    }
    return LaunchDocument(**(plain | changes))


def node(index=0, count=2, job="7"):
    return Node(index, count, "127.0.0.1", job)


class TestThisNode:
    def test_single_node_is_node_0(self):
        assert this_node(document(nodes=1), {"SLURM_PROCID": "3"}) == Node(0, 1, "127.0.0.1", "local")

    def test_node_is_identified_by_its_slurm_name(self):
        environ = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "localhost"}
        assert this_node(document(), environ) == Node(1, 2, "localhost", "7", "localhost")

    def test_node_is_identified_by_its_host_name_otherwise(self):
        environ = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "no-such-host.invalid"}
        assert this_node(document(), environ).address in (socket.gethostname(), "127.0.0.1")


class TestPublish:
    def test_other_nodes_read_the_verdict_of_node_0(self, tmp_path):
        layout = AttemptLayout(tmp_path)
        output = publish(layout, node(), 3)
        assert await_rendezvous(layout, node(1)) == output
        assert output.execution == 3
        assert output.port > 0

    def test_rejected_claim_ends_the_other_nodes(self, tmp_path):
        layout = AttemptLayout(tmp_path)
        assert publish(layout, node(), None) is None
        assert await_rendezvous(layout, node(1)) is None

    def test_verdict_of_another_scheduler_job_is_ignored(self, tmp_path):
        layout = AttemptLayout(tmp_path)
        publish(layout, node(job="6"), 3)
        times = iter([0.0, 1.0, 1000.0])
        assert await_rendezvous(layout, node(1), now=lambda: next(times)) is None

    def test_single_node_writes_nothing(self, tmp_path):
        assert publish(AttemptLayout(tmp_path), node(count=1), 3) == Rendezvous(3, "127.0.0.1", 0)
        assert os.listdir(tmp_path) == []


class TestCommand:
    def test_node_0_hosts_the_rendezvous(self):
        layout, meeting = AttemptLayout(Path("/run/a")), Rendezvous(3, "node1", 4567)
        first, second = (torchrun.command(layout, document(), node(index), meeting) for index in (0, 1))
        for parts, host in ((first, "1"), (second, "0")):
            line = " ".join(parts)
            assert "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d" in line
            assert f"--rdzv-endpoint node1:4567 --rdzv-conf is_host={host} --rdzv-id a1-3" in line

    def test_an_ipv6_address_is_bracketed(self):
        assert Rendezvous(1, "fe80::1", 5).endpoint == "[fe80::1]:5"

    def test_gloo_uses_loopback_only_on_one_node(self):
        assert "GLOO_SOCKET_IFNAME" in torchrun.environment(document(nodes=1), 1, {})
        assert "GLOO_SOCKET_IFNAME" not in torchrun.environment(document(), 1, {})

    def test_site_interface_applies_to_several_nodes_unless_in_spec(self):
        result = torchrun.environment(document(network_interface="ib0"), 1, {"NCCL_SOCKET_IFNAME": "eth1"})
        assert (result["GLOO_SOCKET_IFNAME"], result["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth1")
        assert "NCCL_SOCKET_IFNAME" not in torchrun.environment(document(nodes=1, network_interface="ib0"), 1, {})


class TestStopLead:
    @pytest.mark.parametrize(("minutes", "lead"), [(1, 15.0), (10, 60.0), (600, 180.0), (None, 180.0)])
    def test_lead_leaves_time_for_training(self, minutes, lead):
        assert document(time_limit_minutes=minutes).lead == lead

    @pytest.mark.parametrize(("minutes", "lead"), [(1, 30.0), (60, 300.0), (None, 300.0)])
    def test_lead_of_the_spec_is_at_most_half_of_the_limit(self, minutes, lead):
        launch = document(time_limit_minutes=minutes)
        restart = Restart(signal=WarningSignal(lead_minutes=5.0))
        spec = launch.spec.model_copy(update={"restart": restart})
        assert launch.model_copy(update={"spec": spec}).lead == lead
