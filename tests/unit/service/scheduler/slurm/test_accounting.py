"""Parsing of accounts and enforced fields from `scontrol show config` and `sacctmgr`."""

import pytest

from service.scheduler.slurm.accounting import (
    AccountingRules,
    enforced_fields,
    is_operator,
    parse_accounts,
    parse_rules,
)

CONFIGURATION = """Configuration data as of 2026-01-01T00:00:00
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = {enforce}
AccountingStorageType   = {storage}
ClusterName             = lab

Slurmctld(primary) at host is UP
"""
ASSOCIATIONS = """\
None|lab|physics||physics|long,normal
None|lab|chemistry|gpu|physics|normal
None|lab|chemistry|high|physics|+urgent
None|other|biology||physics|normal
None|lab|||physics|normal
"""


@pytest.mark.parametrize(
    ("enforce", "accounts", "qos"),
    [
        ("none", False, False),
        ("associations", True, False),
        ("associations,limits,qos", True, True),
        ("qos", True, True),
        ("safe", True, False),
    ],
)
def test_enforced_fields(enforce: str, accounts: bool, qos: bool) -> None:
    rules = parse_rules(CONFIGURATION.format(enforce=enforce, storage="accounting_storage/slurmdbd"))
    assert rules == AccountingRules("lab", present=True, accounts=accounts, qos=qos)


def test_without_accounting_no_query_is_made() -> None:
    assert not parse_rules(CONFIGURATION.format(enforce="none", storage="accounting_storage/none")).present


def test_accounts_with_partitions_and_qos() -> None:
    chemistry, physics = parse_accounts(ASSOCIATIONS, "lab")
    assert (physics.name, physics.default, physics.partitions, physics.qos) == (
        "physics",
        True,
        None,
        ["long", "normal"],
    )
    assert (chemistry.default, chemistry.partitions, chemistry.qos) == (False, ["gpu", "high"], ["normal", "urgent"])


def test_an_operator_may_use_every_qos() -> None:
    rules = AccountingRules("lab", present=True, accounts=True, qos=True)
    assert is_operator(ASSOCIATIONS) is False
    assert is_operator("Administrator|lab|root||root|normal\n") is True
    assert enforced_fields(rules, operator=False) == ["account", "qos"]
    assert enforced_fields(rules, operator=True) == ["account"]
