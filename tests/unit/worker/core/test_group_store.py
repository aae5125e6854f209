import os
import threading
from datetime import timedelta

from tests.support.sockets import listening_sockets
from worker.core.group_store import listen, open_store, serve
from worker.core.processes import STORE_VARIABLE

TIMEOUT = timedelta(seconds=30)


def environ(rank, world, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(world), **more}


def test_a_single_rank_has_no_socket_and_no_file():
    before = listening_sockets()
    store = open_store(environ(0, 1), TIMEOUT)
    store.set("a", "b")
    assert (store.get("a"), store.timeout) == (b"b", TIMEOUT)
    assert listening_sockets() == before


def test_ranks_of_one_node_meet_in_a_file(tmp_path):
    before = listening_sockets()
    path = tmp_path / "store"
    first, second = (open_store(environ(rank, 2, **{STORE_VARIABLE: str(path)}), TIMEOUT) for rank in range(2))
    first.set("a", "b")
    assert (second.get("a"), second.timeout) == (b"b", TIMEOUT)
    assert listening_sockets() == before
    assert path.stat().st_uid == os.getuid()


def test_ranks_of_several_nodes_meet_at_one_address():
    before = listening_sockets()
    probe = listen("127.0.0.1")
    port = probe.getsockname()[1]
    probe.close()
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    stores = {}

    def open_as(rank):
        stores[rank] = open_store(environ(rank, 2, **group), TIMEOUT)

    threads = [threading.Thread(target=open_as, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[0].set("a", "b")
    assert stores[1].get("a") == b"b"
    assert listening_sockets() - before == {("127.0.0.1", port)}


def test_ranks_of_plain_torchrun_use_the_store_of_its_agent():
    agent = serve(listen("127.0.0.1"), "127.0.0.1", TIMEOUT)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    open_store(environ(0, 2, **group), TIMEOUT).set("a", "b")
    assert agent.get("a") == b"b"
