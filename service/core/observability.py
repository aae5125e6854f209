"""Log lines and Prometheus metrics of the service."""

import logging
import sys
from collections.abc import Mapping
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LOGGED_ELSEWHERE = ("Exception in ASGI", "Invalid HTTP request received")
"""Messages of uvicorn about errors that the application logs with the request's id, or counts by the minute."""


def is_logged(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn is written unchanged."""
    return not record.getMessage().startswith(_LOGGED_ELSEWHERE)


def configure_logging(form: Literal["console", "json"]) -> None:
    """Write a line for each log event to standard error, including events of libraries."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(is_logged)
    colors = sys.stderr.isatty()
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(renderers if form == "json" else [console]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


# Label values that exist from the start, at 0: Prometheus does not count the rise of a series that begins at 1.
_OUTCOMES = ("ok", "failed", "timeout")
_ANSWERS = ("accepted", "rejected", "ambiguous", "not_submitted", "postponed", "refused")
_ADOPTED_BY = ("name", "claim", "operator")
_KINDS = ("points", "log_bytes", "events", "checkpoints", "parameters", "media", "rejected")


class ServiceMetrics:
    """Metrics of a process, in a registry of its own so that several services can run in the same test."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "trainyard_http_request_seconds",
            "Time to answer a request.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._jobs = Gauge("trainyard_jobs", "Jobs by status.", ("status",), registry=self.registry)
        self._ticks = Histogram(
            "trainyard_reconcile_tick_seconds", "Time of one reconcile tick.", registry=self.registry
        )
        self._tick_errors = Counter(
            "trainyard_reconcile_errors_total", "Reconcile ticks that failed.", registry=self.registry
        )
        self._commands = self._counter("scheduler_commands", "Commands to Slurm.", "command", "outcome")
        self._submissions = self._counter("submissions", "Answers to submissions.", "outcome")
        self._adoptions = self._counter("adoptions", "Unconfirmed submissions that were found.", "how")
        self._ingested = self._counter("ingested", "Items that workers reported, repeated ones included.", "kind")
        self._request_children: dict[tuple[str, str, int], Histogram] = {}
        self._ingested_children = {kind: self._ingested.labels(kind) for kind in _KINDS}
        for counter, values in ((self._submissions, _ANSWERS), (self._adoptions, _ADOPTED_BY)):
            for value in values:
                counter.labels(value)
        self._in_flight = Gauge("trainyard_submissions_in_flight", "Submissions in flight.", registry=self.registry)
        self._unanswered = Gauge(
            "trainyard_submissions_unanswered", "Attempts whose submission is unconfirmed.", registry=self.registry
        )
        self._cluster_age = Gauge(
            "trainyard_cluster_age_seconds", "Age of the cluster snapshot.", registry=self.registry
        )

        self._orphans = Gauge(
            "trainyard_orphans", "Queue entries and run directories without a job.", ("where",), registry=self.registry
        )
        self._failing_nodes = Gauge(
            "trainyard_failing_nodes",
            "Nodes where several jobs did not start: excluded, or in use because the limit is reached.",
            ("state",),
            registry=self.registry,
        )

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"trainyard_{name}_total", help_, labels, registry=self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        child = self._request_children.get((method, route, status))
        if child is None:
            # Cached: `labels` takes as long as `observe`.
            child = self._request_children[method, route, status] = self._requests.labels(method, route, str(status))
        child.observe(seconds)

    def tick(self, seconds: float) -> None:
        self._ticks.observe(seconds)

    def tick_failed(self) -> None:
        self._tick_errors.inc()

    def command(self, command: str, outcome: str) -> None:
        """Count a Slurm command by outcome: `ok`, `failed` or `timeout`; for sbatch, an unclear answer is `failed`."""
        for known in _OUTCOMES:
            self._commands.labels(command, known)
        self._commands.labels(command, outcome).inc()

    def submission(self, outcome: str) -> None:
        """Count a submission by its answer; `not_submitted` and `refused` submissions were never sent."""
        self._submissions.labels(outcome).inc()

    def adoption(self, how: str) -> None:
        """Count an unconfirmed submission that was found by its `name`, `claim`, recorded `answer` or an `operator`."""
        self._adoptions.labels(how).inc()

    def ingested(self, kind: str, amount: int) -> None:
        """Count reports of workers by kind, a member of `_KINDS`; `rejected`: spool records."""
        self._ingested_children[kind].inc(amount)

    def submissions_in_flight(self, count: int) -> None:
        self._in_flight.set(count)

    def render(
        self,
        jobs: dict[str, int],
        unanswered: int,
        cluster_age: float | None,
        orphans: Mapping[str, int],
        failing_nodes: Mapping[str, int],
    ) -> bytes:
        """Return the exposition text with the current number of jobs by status."""
        self._jobs.clear()
        for status, count in jobs.items():
            self._jobs.labels(status).set(count)
        self._unanswered.set(unanswered)
        for where, number in orphans.items():
            self._orphans.labels(where).set(number)
        for state, number in failing_nodes.items():
            self._failing_nodes.labels(state).set(number)
        self._cluster_age.set(float("nan") if cluster_age is None else cluster_age)
        return generate_latest(self.registry)
