"""The accounts and QOS that the service's Slurm account may use, parsed from `scontrol` and `sacctmgr`."""

import os
import pwd
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import structlog

from service.scheduler.base import Canceller, NoAnswerYetError, SchedulerUnavailableError
from service.scheduler.slurm.commands import SlurmCommands
from service.scheduler.slurm.late_answers import LateAnswers
from trainyard.contract.wire.cluster import AccountResource, ClusterSnapshot

log = structlog.get_logger("slurm")

_RULES_SECONDS = 600.0
"""How long the controller's configuration is cached."""
COLUMNS = ("AdminLevel", "Cluster", "Account", "Partition", "DefaultAccount", "QOS")
"""Columns of `sacctmgr show associations`, in the order of the fields of `_Association`."""
_SETTING = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)


class _Association(NamedTuple):
    """One line of sacctmgr's output."""

    admin_level: str
    cluster: str
    account: str
    partition: str
    default_account: str
    qos: str


@dataclass(frozen=True)
class AccountingRules:
    """Whether the cluster has accounting, and which limits the accounting enforces."""

    cluster: str
    present: bool
    accounts: bool
    """Whether Slurm refuses an account without an association of the user."""
    qos: bool
    """Whether Slurm refuses a QOS that the association does not list."""
    private_jobs: bool = False
    """Whether Slurm hides the jobs of others from everybody but its operators."""
    slurm_user: str = ""
    """The account of the controller, which sees all jobs."""


def settings_of(configuration: str) -> dict[str, str]:
    """Return the settings in the output of `scontrol show config`."""
    return {name: value.strip() for name, value in _SETTING.findall(configuration)}


def parse_rules(configuration: str) -> AccountingRules:
    """Return the rules in the output of `scontrol show config`."""
    settings = settings_of(configuration)
    enforced = set(settings.get("AccountingStorageEnforce", "").lower().split(","))
    # Each of the other values implies `associations`.
    stricter = {"limits", "qos", "safe", "wckeys", "all"}
    return AccountingRules(
        cluster=settings.get("ClusterName", ""),
        present=settings.get("AccountingStorageType", "").endswith("slurmdbd"),
        accounts=bool(enforced & ({"associations"} | stricter)),
        qos=bool(enforced & {"qos", "all"}),
        private_jobs="jobs" in settings.get("PrivateData", "").lower().split(","),
        slurm_user=settings.get("SlurmUser", "").partition("(")[0],
    )


def parse_accounts(text: str, cluster: str) -> list[AccountResource]:
    """Return the user's accounts on this cluster, sorted by name."""
    rows: dict[str, list[_Association]] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == len(COLUMNS) and (row := _Association(*cells)).cluster == cluster and row.account:
            rows.setdefault(row.account, []).append(row)
    return [_account(name, rows[name]) for name in sorted(rows)]


def is_operator(text: str) -> bool:
    """Return whether the user is a Slurm operator, who may use every QOS."""
    levels = {line.split("|")[0].lower() for line in text.splitlines()}
    return bool(levels & {"operator", "administrator"})


def enforced_fields(rules: AccountingRules, *, operator: bool) -> list[Literal["account", "qos"]]:
    """Return the spec fields for which Slurm refuses unlisted values."""
    fields: list[Literal["account", "qos"]] = []
    if rules.accounts:
        fields.append("account")
    if rules.qos and not operator:
        fields.append("qos")
    return fields


def _account(name: str, rows: Sequence[_Association]) -> AccountResource:
    partitions = sorted({row.partition for row in rows})
    return AccountResource(
        name=name,
        default=any(row.default_account == name for row in rows),
        partitions=None if "" in partitions else partitions,
        qos=sorted({qos.lstrip("+-") for row in rows for qos in row.qos.split(",") if qos}),
    )


class SlurmAccounts:
    """Adds accounts to a cluster snapshot; if the accounting does not respond, the snapshot stays without them."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._rules: AccountingRules | None = None
        self._rules_at = float("-inf")
        self._sees_all_jobs_at = float("-inf")
        self._answers = LateAnswers[str]("sacctmgr")
        self._associations_before: str | None = None

    def require_all_jobs(self) -> None:
        """Check, every ten minutes, that the jobs of all users are listed for the account of the service.

        A hidden job would look like an ended job, and would be submitted a second time.

        Raises:
            SchedulerUnavailableError: they are not, or Slurm does not answer.
        """
        now = time.monotonic()
        if os.geteuid() == 0 or now - self._sees_all_jobs_at <= _RULES_SECONDS:
            return
        rules = self._current_rules()
        if rules.private_jobs and rules.slurm_user != _user() and not self._is_operator(rules):
            raise SchedulerUnavailableError(
                f"PrivateData=jobs hides the jobs of users from the account `{_user()}`; make it an operator of "
                f"Slurm: sacctmgr modify user {_user()} set adminlevel=operator"
            )
        self._sees_all_jobs_at = now

    def _is_operator(self, rules: AccountingRules) -> bool:
        """Return whether the service is an operator. The last result counts while the accounting does not answer."""
        try:
            return rules.present and is_operator(self._associations())
        except SchedulerUnavailableError:
            if self._associations_before is None:
                raise
            return is_operator(self._associations_before)

    def canceller(self, uid: int) -> Canceller:
        """Return who cancelled a job, by the uid in the accounting's record."""
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid {uid}"
        try:
            return Canceller(name, is_administrator=uid == 0 or name == self._current_rules().slurm_user)
        except SchedulerUnavailableError:
            return Canceller(name)

    def add_to(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Return the snapshot with the accounts that the service may use."""
        try:
            rules = self._current_rules()
            if not rules.present:
                return snapshot
            text = self._associations()
        except SchedulerUnavailableError as error:
            log.warning("accounts are unavailable", error=str(error))
            return snapshot
        enforced = enforced_fields(rules, operator=is_operator(text))
        return snapshot.model_copy(update={"accounts": parse_accounts(text, rules.cluster), "enforced": enforced})

    def _associations(self) -> str:
        """Return the output of sacctmgr; if it is slow, its last output."""
        user = _user()
        query = partial(self._commands.associations, user, COLUMNS)
        try:
            self._associations_before = self._answers.ask("associations", frozenset([user]), query).value
        except NoAnswerYetError:
            if self._associations_before is None:
                raise
        return self._associations_before

    def _current_rules(self) -> AccountingRules:
        now = time.monotonic()
        if self._rules is None or now - self._rules_at > _RULES_SECONDS:
            self._rules, self._rules_at = parse_rules(self._commands.configuration()), now
        return self._rules


def _user() -> str:
    """Return the user name of this process; a uid without a name has no associations either."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
