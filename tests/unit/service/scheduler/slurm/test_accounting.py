"""Parsing of accounts and enforced fields from `scontrol show config` and `sacctmgr`."""

import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext

import pytest

from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm import accounting, late_answers
from service.scheduler.slurm.accounting import (
    AccountingRules,
    SlurmAccounts,
    enforced_fields,
    is_operator,
    parse_accounts,
    parse_rules,
)
from service.scheduler.slurm.commands import SlurmCommands
from trainyard.contract.wire.cluster import ClusterSnapshot

CONFIGURATION = """Configuration data as of 2026-01-01T00:00:00
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = {enforce}
AccountingStorageType   = {storage}
ClusterName             = lab
PrivateData             = {private}
SlurmUser               = slurm(64030)

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
    rules = parse_rules(CONFIGURATION.format(enforce=enforce, storage="accounting_storage/slurmdbd", private="none"))
    assert rules == AccountingRules("lab", present=True, accounts=accounts, qos=qos, slurm_user="slurm")


def test_without_accounting_no_query_is_made() -> None:
    assert not parse_rules(
        CONFIGURATION.format(enforce="none", storage="accounting_storage/none", private="none")
    ).present


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


class Cluster(SlurmCommands):
    """A cluster that states what it hides, and the administrative level of every account."""

    def __init__(self, private: str, level: str) -> None:
        super().__init__()
        storage = "accounting_storage/slurmdbd"
        self._configuration = CONFIGURATION.format(enforce="none", storage=storage, private=private)
        self._level = level

    def configuration(self) -> str:
        return self._configuration

    def associations(self, user: str, columns: Sequence[str]) -> str:
        return f"{self._level}|lab|physics||physics|long"


@pytest.mark.parametrize(
    ("private", "level", "user", "hidden"),
    [
        ("none", "None", "trainyard", False),
        ("accounts,users", "None", "trainyard", False),
        ("accounts,jobs", "None", "trainyard", True),
        ("jobs", "Operator", "trainyard", False),
        ("jobs", "None", "slurm", False),
    ],
)
def test_a_service_that_does_not_see_all_jobs_concludes_nothing(
    private: str, level: str, user: str, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(accounting, "_user", lambda: user)
    accounts = SlurmAccounts(Cluster(private, level))
    with pytest.raises(SchedulerUnavailableError, match="adminlevel=operator") if hidden else nullcontext():
        accounts.require_all_jobs()


def test_an_accounting_that_fails_later_hides_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cluster = [1000.0], Cluster("jobs", "Operator")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(accounting, "_user", lambda: "trainyard")
    monkeypatch.setattr(accounting.time, "monotonic", lambda: now[0])
    accounts, query = SlurmAccounts(cluster), cluster.associations

    def fail(user: str, columns: Sequence[str]) -> str:
        raise SchedulerUnavailableError("sacctmgr exited with 1")

    monkeypatch.setattr(cluster, "associations", fail)
    with pytest.raises(SchedulerUnavailableError, match="sacctmgr"):
        accounts.require_all_jobs()
    monkeypatch.setattr(cluster, "associations", query)
    accounts.require_all_jobs()
    monkeypatch.setattr(cluster, "associations", fail)
    now[0] += 3600
    accounts.require_all_jobs()


def test_a_slow_sacctmgr_delays_nobody_and_keeps_the_known_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, opened = Cluster("none", "None"), threading.Event()
    accounts, snapshot = SlurmAccounts(cluster), ClusterSnapshot()
    query = cluster.associations
    assert [each.name for each in accounts.add_to(snapshot).accounts or []] == ["physics"]
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 0.01)

    def slow(user: str, columns: Sequence[str]) -> str:
        opened.wait(30)
        return query(user, columns).replace("physics", "biology")

    monkeypatch.setattr(cluster, "associations", slow)
    assert [each.name for each in accounts.add_to(snapshot).accounts or []] == ["physics"]
    opened.set()
    monkeypatch.setattr(late_answers, "_BRIEF_SECONDS", 30)
    assert [each.name for each in accounts.add_to(snapshot).accounts or []] == ["biology"]
