import os
import socket
from functools import partial
from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.sections import Restart, WarningSignal
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from worker.launcher import nodes, torchrun
from worker.launcher.nodes import AttemptContext, Node, await_decision, publish, this_node
from worker.reporting.service_client import ServiceClient

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


def context(layout, node, launch=None):
    """Return what the launcher of a node knows; the service cannot be reached."""
    connect = partial(ServiceClient, "http://127.0.0.1:1", "a1", "secret")
    return AttemptContext(layout, launch or document(), node, connect, lambda: False)


def node(index=0, count=2, job="7"):
    return Node(index, count, "127.0.0.1", job)


class TestThisNode:
    def test_single_node_is_node_0(self):
        assert this_node(document(nodes=1), {"SLURM_PROCID": "3"}) == Node(0, 1, "127.0.0.1", "local")

    @pytest.mark.parametrize("name", ["node1", "no-such-host"])
    def test_node_is_identified_by_its_slurm_or_host_name(self, monkeypatch, name):
        resolve_to(monkeypatch, node1="10.1.2.3", host="10.1.2.4")
        result = this_node(document(), {"SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": name})
        assert result == Node(1, 2, "node1" if name == "node1" else "host", "7", name)

    @pytest.mark.parametrize("own", ["127.0.1.1", "::1"])
    def test_a_name_that_is_loopback_on_the_node_itself_is_not_used(self, monkeypatch, own):
        resolve_to(monkeypatch, node1=own)
        monkeypatch.setattr(nodes, "_outgoing_address", lambda: "10.1.2.3")
        environ = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"}
        assert this_node(document(), environ).address == "10.1.2.3"


def resolve_to(monkeypatch, **addresses):
    def getaddrinfo(name, port, **options):
        if name not in addresses:
            raise socket.gaierror(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "gethostname", lambda: "host")


class TestPublish:
    @pytest.fixture
    def layout(self, tmp_path):
        made = AttemptLayout(tmp_path)
        made.token.write_text("the token\n")
        return made

    def test_other_nodes_read_the_decision_of_node_0(self, layout):
        assert publish(layout, node(), 3) == 3
        assert await_decision(layout, node(1)) == 3

    def test_rejected_claim_ends_the_other_nodes(self, layout):
        assert publish(layout, node(), None) is None
        assert await_decision(layout, node(1)) is None

    def test_decision_of_another_scheduler_job_is_ignored(self, layout):
        publish(layout, node(job="6"), 3)
        times = iter([0.0, 1.0, 1000.0])
        assert await_decision(layout, node(1), now=lambda: next(times)) is None

    def test_single_node_writes_nothing(self, tmp_path):
        assert publish(AttemptLayout(tmp_path), node(count=1), 3) == 3
        assert os.listdir(tmp_path) == []


class TestCommand:
    def test_every_node_uses_our_rendezvous(self):
        layout = AttemptLayout(Path("/run/a"))
        first, second = (torchrun.command(context(layout, node(index)), 3) for index in (0, 1))
        assert [first[0], "1", *first[2:]] == second
        line = " ".join(first)
        assert "/run/a 0 7 --nnodes 2 --nproc-per-node 2" in line
        assert "--rdzv-backend trainyard --rdzv-id a1-3 --local-addr 127.0.0.1" in line

    @pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
    def test_ranks_use_the_loopback_interface_only_on_one_node(self, name):
        assert torchrun.environment(document(nodes=1), 1, {})[name] == "lo"
        assert torchrun.environment(document(nodes=1), 1, {name: "eth1"})[name] == "lo"
        assert name not in torchrun.environment(document(), 1, {})
        assert torchrun.environment(document(), 1, {name: "eth1"})[name] == "eth1"

    def test_interface_of_the_settings_replaces_that_of_the_environment(self):
        result = torchrun.environment(document(network_interface="ib0"), 1, {"NCCL_SOCKET_IFNAME": "eth1"})
        assert (result["GLOO_SOCKET_IFNAME"], result["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")
        assert torchrun.environment(document(nodes=1, network_interface="ib0"), 1, {})["NCCL_SOCKET_IFNAME"] == "lo"


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
