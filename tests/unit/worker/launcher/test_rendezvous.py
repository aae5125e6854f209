"""Nodes are threads here; real ones are in tests/integration/worker/test_node.py and in the Slurm lab."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from tests.support.sockets import listening_sockets
from tests.support.wait import wait_until
from worker.launcher.rendezvous import Clock, NodeRendezvous, NodeStore
from worker.launcher.signed_folder import SignedFolder


@pytest.fixture
def folder(tmp_path):
    return SignedFolder(tmp_path / "nodes-7", b"the token")


def rendezvous(folder, node=0, count=2, *, run_id="a1-3", serves_ranks=False, clock=None):
    return NodeRendezvous(run_id, node, count, "127.0.0.1", folder, serves_ranks, clock or Clock())


def meet(nodes):
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda node: node.next_rendezvous(), nodes))


class PassingTime(Clock):
    """A clock on which every sleep takes a minute."""

    def __init__(self):
        self.seconds = 0.0
        super().__init__(lambda: self.seconds, self.pass_minute)

    def pass_minute(self, _):
        self.seconds += 60


class TestOneNode:
    def test_meets_itself_without_a_socket_or_file(self, tmp_path):
        before = listening_sockets()
        node = rendezvous(None, count=1)
        info = node.next_rendezvous()
        assert (info.rank, info.world_size) == (0, 1)
        assert info.bootstrap_store_info.master_addr == "127.0.0.1"
        assert not node.use_agent_store
        assert listening_sockets() == before
        assert list(tmp_path.iterdir()) == []
        assert (node.num_nodes_waiting(), node.is_closed(), node.shutdown()) == (0, False, True)

    def test_store_for_a_program_listens_on_the_loopback_interface_alone(self):
        before = listening_sockets()
        node = rendezvous(None, count=1, serves_ranks=True)
        first = node.next_rendezvous().bootstrap_store_info.master_port
        assert listening_sockets() - before == {("127.0.0.1", first)}
        second = node.next_rendezvous().bootstrap_store_info.master_port
        assert listening_sockets() - before == {("127.0.0.1", second)}, "each start has a store of its own"
        node.shutdown()
        assert listening_sockets() == before


class TestSeveralNodes:
    def test_each_start_begins_when_all_nodes_have_arrived(self, folder):
        nodes = [rendezvous(folder, index, 3) for index in range(3)]
        for _ in range(2):
            meetings = meet(nodes)
            assert [meeting.rank for meeting in meetings] == [0, 1, 2]
            assert {meeting.world_size for meeting in meetings} == {3}
            assert len({meeting.bootstrap_store_info.master_port for meeting in meetings}) == 1

    def test_a_waiting_node_is_observed_after_its_ranks_failed(self, folder):
        seconds = itertools.count(1e9, 10.0)
        nodes = [rendezvous(folder, node) for node in range(2)]
        meet(nodes)
        assert nodes[0].num_nodes_waiting() == 0
        failed = threading.Thread(target=nodes[1].next_rendezvous)
        failed.start()
        nodes[0].clock = Clock(lambda: next(seconds))
        wait_until(nodes[0].num_nodes_waiting, 30, "the other node to wait")
        nodes[0].clock = Clock()
        assert nodes[0].next_rendezvous().rank == 0
        failed.join()
        assert nodes[0].num_nodes_waiting() == 0, "the node that waited has started with it"
        nodes[0].clock = Clock(lambda: next(seconds))
        assert nodes[0].num_nodes_waiting() == 0

    def test_nodes_do_not_wait_for_one_that_has_ended(self, folder):
        nodes = [rendezvous(folder, index) for index in range(2)]
        meet(nodes)
        nodes[1].shutdown()
        with pytest.raises(RendezvousClosedError):
            nodes[0].next_rendezvous()

    def test_a_node_that_never_arrives_is_an_error(self, folder):
        with pytest.raises(RendezvousTimeoutError, match="not all 2 nodes arrived"):
            rendezvous(folder, clock=PassingTime()).next_rendezvous()

    def test_unsigned_arrivals_are_not_counted(self, tmp_path, folder):
        (tmp_path / "nodes-7").mkdir()
        for start in (1, 2):
            (tmp_path / "nodes-7" / f"a1-3%2F{start}%2Farrived%2F1").write_text("")
        node = rendezvous(folder, clock=PassingTime())
        with pytest.raises(RendezvousTimeoutError):
            node.next_rendezvous()
        assert node.num_nodes_waiting() == 0

    def test_an_earlier_execution_in_the_same_scheduler_job_is_ignored(self, folder):
        earlier = [rendezvous(folder, index, run_id="a1-2") for index in range(2)]
        meet(earlier)
        for node in earlier:
            node.shutdown()
        with pytest.raises(RendezvousTimeoutError):
            rendezvous(folder, clock=PassingTime()).next_rendezvous()
        assert [meeting.rank for meeting in meet([rendezvous(folder, index) for index in range(2)])] == [0, 1]


class TestStore:
    def test_nodes_exchange_values(self, folder):
        first, second = (NodeStore(folder, "1/", node) for node in range(2))
        first.multi_set(["a", "b"], ["1", b"2"])
        assert second.multi_get(["a", "b"]) == [b"1", b"2"]
        assert [first.add("count", 1), second.add("count", 1)] == [1, 2]

    def test_absent_value_is_an_error_after_the_timeout(self, folder):
        store = NodeStore(folder, "1/", 0, PassingTime())
        with pytest.raises(DistStoreError, match="no node wrote `a`"):
            store.wait(["a"], timedelta(minutes=5))
        assert store.timeout == timedelta(minutes=10)
