"""The service's own log lines and Prometheus series."""

import logging
import sys
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


def configure_logging(form: Literal["console", "json"]) -> None:
    """One line an event on standard error; libraries' lines go the same way."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


class ServiceMetrics:
    """Series of one process; a registry of its own, so that several services can live in one test."""

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

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).observe(seconds)

    def tick(self, seconds: float) -> None:
        self._ticks.observe(seconds)

    def tick_failed(self) -> None:
        self._tick_errors.inc()

    def render(self, jobs: dict[str, int]) -> bytes:
        """The exposition text, with the jobs as they are now."""
        self._jobs.clear()
        for status, count in jobs.items():
            self._jobs.labels(status).set(count)
        return generate_latest(self.registry)
