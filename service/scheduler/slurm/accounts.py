"""Accounts and qos beside the cluster's snapshot: asked for only where there is accounting, and never in its way."""

import os
import pwd
import time

import structlog

from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm.accounting_rules import (
    AccountingRules,
    may_do_all,
    parse_accounts,
    parse_rules,
    refused,
)
from service.scheduler.slurm.commands import SlurmCommands
from trainyard.contract.wire.cluster import ClusterSnapshot

log = structlog.get_logger("cluster")

_RULES_SECONDS = 600.0
"""The controller's configuration changes seldom."""


class SlurmAccounts:
    """Adds what the accounting says to a snapshot; where it does not answer, the snapshot goes without."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._rules: AccountingRules | None = None
        self._rules_at = float("-inf")

    def beside(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """The snapshot with the accounts that this service's account may use."""
        try:
            rules = self._current_rules()
            if not rules.present:
                return snapshot
            text = self._commands.associations(_user())
        except SchedulerUnavailableError as error:
            log.warning("accounts are not told", error=str(error))
            return snapshot
        told = refused(rules, operator=may_do_all(text))
        return snapshot.model_copy(update={"accounts": parse_accounts(text, rules.cluster), "enforced": told})

    def _current_rules(self) -> AccountingRules:
        now = time.monotonic()
        if self._rules is None or now - self._rules_at > _RULES_SECONDS:
            self._rules, self._rules_at = parse_rules(self._commands.configuration()), now
        return self._rules


def _user() -> str:
    """The name under which Slurm knows this process; an account without a name has no associations either."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
