"""Slurm's records of a job's end beyond its state: who cancelled it, and why its nodes are out of service."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from service.scheduler.base import Observation, SchedulerUnavailableError
from service.scheduler.slurm.accounting import SlurmAccounts
from service.scheduler.slurm.commands import NodeReason, SlurmCommands
from service.scheduler.slurm.late_answers import LateAnswers

log = structlog.get_logger("slurm")

_MAX_NODE_LISTS, _MAX_REASONS = 4, 4
"""Maximum number of node lists whose reasons a poll queries, and of reasons in a message."""
_PATIENCE_SECONDS = 30.0
"""How long an unclear end waits for the accounting and sinfo. slurmdbd gets a record a few seconds late."""
_BY = re.compile(r"CANCELLED by (\d+)")
_OF_NODES = ("node_failure", "launch_failed")
_CONSEQUENCES = ("kill task failed", "epilog")
"""Reasons for which Slurm drains a node because of how a job ended there."""


class EndEvidence:
    """Adds to ended jobs who cancelled them and why their nodes are out of service."""

    def __init__(self, commands: SlurmCommands, accounts: SlurmAccounts) -> None:
        self._commands = commands
        self._accounts = accounts
        self._answers: LateAnswers[dict[str, list[NodeReason]]] = LateAnswers("sinfo")
        self._since: dict[str, float] = {}
        """Since when an ended job waits for its evidence, by tag."""

    def collect(
        self, observed: Mapping[str, Observation], states: Mapping[str, str], unrecorded: Collection[str]
    ) -> dict[str, Observation | None]:
        """Return the observations with the evidence of their ends; None for jobs that wait for it.

        Args:
            observed: Observations by tag, without the jobs that the service itself has cancelled.
            states: The states of ended jobs in the accounting, by tag.
            unrecorded: The tags of jobs with an unclear end that the accounting, if the cluster has it, has not
                recorded yet.
        """
        reasons = self._reasons(observed)
        explained: dict[str, Observation | None] = {}
        waiting = set(unrecorded)
        for tag, observation in observed.items():
            observation = self.with_canceller(replace(observation, unrecorded=tag in unrecorded), states.get(tag, ""))
            if _may_be_of_nodes(observation):
                waiting |= {tag} if observation.nodes[0] not in reasons else set()
                observation = _with_reasons(observation, reasons.get(observation.nodes[0], []))
            explained[tag] = observation
        now = time.monotonic()
        self._since = {tag: self._since.get(tag, now) for tag in waiting}
        return explained | {tag: None for tag, since in self._since.items() if now - since < _PATIENCE_SECONDS}

    def with_canceller(self, observation: Observation, state: str) -> Observation:
        """Return the observation with who cancelled the job, if its state in the accounting names a uid."""
        if observation.end_state == "cancelled" and (by := _BY.match(state)):
            return replace(observation, canceller=self._accounts.canceller(int(by[1])))
        return observation

    def _reasons(self, observed: Mapping[str, Observation]) -> dict[str, list[NodeReason]]:
        """Return why nodes are out of service, by list of nodes; lists for which sinfo has not answered yet are left
        out."""
        lists = sorted({each.nodes[0] for each in observed.values() if _may_be_of_nodes(each)})[:_MAX_NODE_LISTS]
        if not lists:
            return {}
        try:
            return self._answers.ask(
                "reasons", frozenset(lists), lambda: {nodes: self._commands.node_reasons(nodes) for nodes in lists}
            ).value
        except SchedulerUnavailableError as error:
            log.warning("reasons of nodes are unavailable", error=str(error))
            return {}


def _may_be_of_nodes(observation: Observation) -> bool:
    """Whether nodes may have caused the end. A job whose prolog fails is cancelled or failed, as others are."""
    return observation.end_state in (*_OF_NODES, "cancelled", "failed") and bool(observation.nodes)


def _with_reasons(observation: Observation, reasons: Sequence[NodeReason]) -> Observation:
    if observation.end_state not in _OF_NODES:
        # Faults that the nodes had before, and faults that the end has caused there, do not explain it.
        reasons = [each for each in reasons if _explains(each, observation)]
    if not reasons:
        return observation
    text = "; ".join(each.text for each in reasons[:_MAX_REASONS])
    return replace(
        observation,
        message=f"{observation.message}; {text}",
        node_left=observation.end_state == "cancelled",
        prolog_failed="prolog" in text.lower(),
    )


def _explains(reason: NodeReason, observation: Observation) -> bool:
    """Whether a node was taken out of service while the job was on it, for a cause of its own."""
    if reason.since is None or observation.started_at is None or reason.since < observation.started_at:
        return False
    return not any(text in reason.text.lower() for text in _CONSEQUENCES)
