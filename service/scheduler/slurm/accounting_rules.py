"""Which accounts and qos the service's account may use, from what `scontrol` and `sacctmgr` print. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainyard.contract.wire.cluster import AccountResource

COLUMNS = ("AdminLevel", "Cluster", "Account", "Partition", "DefaultAccount", "QOS")
_SETTING = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class AccountingRules:
    """What of its configuration says whether there is accounting, and what it refuses."""

    cluster: str
    present: bool
    accounts: bool
    """An account without an association for the user is refused."""
    qos: bool
    """A qos that the association does not list is refused."""


def parse_rules(configuration: str) -> AccountingRules:
    """The output of `scontrol show config`."""
    settings = {name: value.strip() for name, value in _SETTING.findall(configuration)}
    enforced = set(settings.get("AccountingStorageEnforce", "").lower().split(","))
    # Slurm turns associations on beneath each of the others.
    stricter = {"limits", "qos", "safe", "wckeys", "all"}
    return AccountingRules(
        cluster=settings.get("ClusterName", ""),
        present=settings.get("AccountingStorageType", "").endswith("slurmdbd"),
        accounts=bool(enforced & ({"associations"} | stricter)),
        qos=bool(enforced & {"qos", "all"}),
    )


def parse_accounts(text: str, cluster: str) -> list[AccountResource]:
    """The user's accounts on this cluster, by name."""
    found: dict[str, list[Sequence[str]]] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == len(COLUMNS) and cells[1] == cluster and cells[2]:
            found.setdefault(cells[2], []).append(cells)
    return [_account(name, found[name]) for name in sorted(found)]


def may_do_all(text: str) -> bool:
    """Whether the user is one of Slurm's operators, whom no qos is refused."""
    levels = {line.split("|")[0].lower() for line in text.splitlines()}
    return bool(levels & {"operator", "administrator"})


def refused(rules: AccountingRules, *, operator: bool) -> list[Literal["account", "qos"]]:
    """Of which fields Slurm refuses what is not listed."""
    found: list[Literal["account", "qos"]] = []
    if rules.accounts:
        found.append("account")
    if rules.qos and not operator:
        found.append("qos")
    return found


def _account(name: str, rows: Sequence[Sequence[str]]) -> AccountResource:
    partitions = sorted({row[3] for row in rows})
    return AccountResource(
        name=name,
        default=any(row[4] == name for row in rows),
        partitions=None if "" in partitions else partitions,
        qos=sorted({qos.lstrip("+-") for row in rows for qos in row[5].split(",") if qos}),
    )
