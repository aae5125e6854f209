"""Node lists of Slurm."""

import pytest

from trainyard.contract.node_lists import expand_node_list, is_listed, shorten
from trainyard.contract.wire.reports import Claim


@pytest.mark.parametrize(
    ("node", "nodes", "listed"),
    [
        ("n1", "n1", True),
        ("n1", "n10", False),
        ("gpu5", "n[1-3,7],gpu5", True),
        ("n7", "n[1-3,7],gpu5", True),
        ("n4", "n[1-3,7],gpu5", False),
        ("n08", "n[07-12]", True),
        ("n8", "n[07-12]", False),
        ("n10", "n[8-12]", True),
        ("r2-n9", "r[1-2]-n[1-9],x", True),
        ("r3-n9", "r[1-2]-n[1-9],x", False),
        ("n.1", "n+1", False),
    ],
)
def test_node_lists_of_slurm(node: str, nodes: str, listed: bool) -> None:
    assert is_listed(node, nodes) is listed


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],gpu5", ["n1", "n2", "n3", "n7", "gpu5"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[8-10]", ["n8", "n9", "n10"]),
        ("r[1-2]-n[1-2],x", ["r1-n1", "r1-n2", "r2-n1", "r2-n2", "x"]),
        ("n[1-8]", ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"]),
        ("n[1-9]", None),
        ("n[0-99999999999999]", None),
        ("r[0-99999999]c[0-99999999]n[0-99999999]", None),
        ("n[3-1]", None),
        ("n[1-", None),
        ("n1,", None),
        ("n[]", None),
        ("n[a-b]", None),
        ("n[[1]]", None),
        ("", None),
    ],
)
def test_names_in_a_node_list(nodes: str, names: list[str] | None) -> None:
    assert expand_node_list(nodes, 8) == names


OF_SLURM = {
    "rack1-node130.x,gpu-024.x,dgx-a[10,101,115]": "rack1-node130.x gpu-024.x dgx-a10 dgx-a101 dgx-a115",
    "node-[0003,0016,0015],n[7,118,83]": "node-0003 node-0016 node-0015 n7 n118 n83",
    "n[071,104],tux58-ib,tux73-ib,n[27,74]": "n071 n104 tux58-ib tux73-ib n27 n74",
    "n[1-3]x[01-02]": "n1x01 n1x02 n2x01 n2x02 n3x01 n3x02",
    "n[09-11]": "n09 n10 n11",
    "n[0008-0010,15]": "n0008 n0009 n0010 n15",
}
"""Lists and names as `scontrol show hostlist` and `scontrol show hostnames` of Slurm 22.05 print them."""


@pytest.mark.parametrize("node_list", OF_SLURM)
def test_names_are_those_that_slurm_prints(node_list: str) -> None:
    names = OF_SLURM[node_list].split()
    assert expand_node_list(node_list, 100) == names
    assert all(is_listed(name, node_list) for name in names)


@pytest.mark.parametrize(
    ("nodes", "names"), [(None, ["ip-7"]), ("gpu-7", ["gpu-7"]), ("n[1-2]", ["n1", "n2"]), ("n[1", ["n[1"])]
)
def test_a_claim_names_the_nodes_as_the_scheduler_does(nodes: str | None, names: list[str]) -> None:
    assert Claim(nonce="nonce-0001", host="ip-7", pid=7, nodes=nodes).node_names == names


def test_many_names_are_shorten() -> None:
    assert shorten(["a", "b", "c", "d"]) == "a, b, c, d"
    assert shorten(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert shorten([]) == ""
