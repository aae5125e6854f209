"""The execution site in a claim."""

import pytest
from pydantic import ValidationError

from trainyard.contract.wire.reports import Claim


def claim(**changes: str) -> Claim:
    return Claim.model_validate({"nonce": "nonce-0001", "host": "vm", "pid": 7, **changes})


def test_node_name_is_the_schedulers_or_else_the_host_name() -> None:
    assert claim().where == "vm"
    assert claim(nodes="node[1-2]").where == "node[1-2] (vm)"
    assert claim(nodes="vm").where == "vm"
    assert claim(nodes="gpu01", host="gpu01.cluster.org").where == "gpu01.cluster.org"


def test_invalid_node_names_are_rejected() -> None:
    with pytest.raises(ValidationError):
        claim(nodes="node1; rm -rf /")
