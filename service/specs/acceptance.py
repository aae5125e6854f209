"""Acceptance of specs: a document is parsed once, resolved once, and passed on as an `AcceptedSpec`."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from service.cluster.repository import ClusterRepository
from service.core.errors import InvalidRequestError, InvalidSpecError
from service.core.settings import Settings
from service.db.engine import Database
from service.db.visibility import readable_jobs
from service.specs.site import site_of
from trainyard.contract.kinds.strategies import Strategy
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.credentials import credential_problems
from trainyard.contract.spec.environment import forbidden_variables
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.cluster import ClusterResource

MSG_FP8_WITHOUT_COMPILE = (
    "fp8 without `compile: true` is slower than bf16: each conversion to 8 bits is a pass over memory of its own"
)
MSG_FP16_ON_CPU = "fp16 on CPUs is emulated and far slower than fp32; use bf16 or fp32"


@dataclass(frozen=True)
class AcceptedSpec:
    """A parsed and resolved spec, with the site and the cluster snapshot for which it was resolved."""

    spec: TrainingSpec
    unresolved: TrainingSpec
    """The spec without anything that the cluster snapshot decided. An idempotency key stands for this spec, since the
    snapshot changes."""
    site: Site
    cluster: ClusterResource
    strategy_reason: str = ""
    """The reason for `spec.strategy`. Empty if the spec was loaded from the database."""
    owner: str = "reconciler"
    """The user who sent the spec. One large model of each owner is estimated at a time."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Choices that the site supports but that are rarely intended."""
        precision = self.spec.precision_kind
        if precision.is_emulated_on_cpus and self.site.accelerator == "cpu":
            return (MSG_FP16_ON_CPU,)
        return (MSG_FP8_WITHOUT_COMPILE,) if precision.converts_linear_layers and not self.spec.compile else ()


@dataclass(frozen=True)
class RejectedSpec:
    """A spec of a batch that was not accepted."""

    problems: tuple[Problem, ...]


class ModelAdvisor(Protocol):
    """Answers the questions about specs that need the structure of the model.

    It can be pickled, so that other processes accept specs too. Its methods may read the model's folder: call them
    outside of database sessions.
    """

    def trainable_problem(self, spec: TrainingSpec) -> Problem | None:
        """Return why the spec's `lora`, `trainable` or optimizer does not match its model, if that is certain."""

    def choose_strategy(self, accepted: AcceptedSpec) -> tuple[Strategy, str]:
        """Return the strategy that `auto` becomes, and the reason."""

    def exceeds_memory(self, accepted: AcceptedSpec) -> list[Problem]:
        """Return why a resolved spec can never fit its machines; empty if that is not certain."""


class NoAdvisor:
    """Answers for a service without an advisor: no model's structure is known."""

    def trainable_problem(self, spec: TrainingSpec) -> Problem | None:
        return None

    def choose_strategy(self, accepted: AcceptedSpec) -> tuple[Strategy, str]:
        strategy = accepted.spec.strategy
        return strategy, f"`auto` selects {strategy}; this service does not estimate memory"

    def exceeds_memory(self, accepted: AcceptedSpec) -> list[Problem]:
        return []


@dataclass(frozen=True)
class SpecAcceptance:
    """Accepts the documents of requests and the specs of stored jobs."""

    database: Database | None
    """None in a process that accepts specs only for a given cluster snapshot."""
    settings: Settings
    advisor: ModelAdvisor

    def accept(self, document: Any, now: datetime, owner: str) -> AcceptedSpec:
        """Parse and resolve a document. Reads the cluster snapshot, and for `strategy: auto` the model's folder.

        Raises:
            InvalidRequestError: The document is not a mapping.
            InvalidSpecError: With every problem of the spec.
        """
        assert self.database is not None
        with self.database.read() as session:
            cluster = ClusterRepository(session).resource(self.settings.backend, now)
            readable = readable_jobs(session, document)
        return self.accept_for(document, cluster, owner, readable)

    def accept_for(
        self, document: Any, cluster: ClusterResource, owner: str, readable: tuple[str, ...] | None = None
    ) -> AcceptedSpec:
        """Parse and resolve a document for a cluster snapshot. Raises like `accept`.

        Args:
            readable: `Site.readable_jobs`.
        """
        if not isinstance(document, dict):
            raise InvalidRequestError("a spec must be a mapping of fields", code="invalid_spec")
        try:
            parsed = parse_spec(document)
        except SpecError as error:
            raise InvalidSpecError(error.problems) from None
        if parsed.project is None and self.settings.default_project == "user":
            parsed = parsed.model_copy(update={"project": owner})
        return self.resolve(parsed, cluster, owner, readable)

    def resolve(
        self, parsed: TrainingSpec, cluster: ClusterResource, owner: str, readable: tuple[str, ...] | None = None
    ) -> AcceptedSpec:
        """Resolve a parsed spec for its site. Not to be called in a database session: it may read the model's folder.

        Raises:
            InvalidSpecError: With every problem of the spec.
        """
        site = replace(site_of(self.settings, parsed.resources, cluster), readable_jobs=readable)
        spec = _resolve(parsed, site)
        if problem := self.advisor.trainable_problem(spec):
            raise InvalidSpecError([problem])
        unresolved = spec if self.settings.site.accelerator else parsed
        accepted = AcceptedSpec(spec, unresolved, site, cluster, "set in the spec", owner)
        return accepted if parsed.strategy != "auto" else self._with_strategy(accepted, parsed)

    def stored(self, spec: TrainingSpec, cluster: ClusterResource, owner: str) -> AcceptedSpec:
        """Return the accepted spec of a user's job that was resolved when it was submitted."""
        return AcceptedSpec(spec, spec, site_of(self.settings, spec.resources, cluster), cluster, owner=owner)

    def _with_strategy(self, accepted: AcceptedSpec, parsed: TrainingSpec) -> AcceptedSpec:
        strategy, reason = self.advisor.choose_strategy(accepted)
        if strategy == accepted.spec.strategy:
            return replace(accepted, strategy_reason=reason)
        try:
            spec = _resolve(parsed.model_copy(update={"strategy": strategy}), accepted.site)
        except InvalidSpecError as error:
            conflict = f"{strategy} conflicts with this spec ({error.problems[0]})"
            reason = f"`auto` selects {accepted.spec.strategy}, because {conflict}"
            return replace(accepted, strategy_reason=reason)
        return replace(accepted, spec=spec, strategy_reason=reason)


def _resolve(parsed: TrainingSpec, site: Site) -> TrainingSpec:
    try:
        spec = resolve(parsed, site)
    except SpecError as error:
        raise InvalidSpecError(error.problems) from None
    if problems := [*forbidden_variables(spec), *credential_problems(spec)]:
        raise InvalidSpecError(problems)
    return spec
