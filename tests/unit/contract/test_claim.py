"""Where a claim says that it runs."""

import pytest
from pydantic import ValidationError

from trainyard.contract.wire.reports import Claim


def claim(**changes: str) -> Claim:
    return Claim.model_validate({"nonce": "nonce-0001", "host": "vm", "pid": 7, **changes})


def test_the_schedulers_names_come_first_and_the_host_where_it_is_none_of_them() -> None:
    assert claim().where == "vm"
    assert claim(nodes="node[1-2]").where == "node[1-2] (vm)"
    assert claim(nodes="vm").where == "vm"
    assert claim(nodes="gpu01", host="gpu01.cluster.org").where == "gpu01.cluster.org"


def test_nodes_are_names_and_nothing_else() -> None:
    with pytest.raises(ValidationError):
        claim(nodes="node1; rm -rf /")
