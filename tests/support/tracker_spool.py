"""What a node's tracker spool has, for tests of the trackers' APIs."""

from typing import Any

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.media import MediaItem, MediaReport
from trainyard.contract.wire.reports import EventsBatch, MetricsBatch, ParametersReport, WorkerEvent
from trainyard.contract.wire.spool import parse_spool


def bodies(layout: AttemptLayout, execution: int = 1) -> list[Any]:
    return [record.body() for record in parse_spool(layout.tracker_spool(execution, 0))]


def points(layout: AttemptLayout, execution: int = 1) -> list[tuple[str, int, float]]:
    """Return name, step and value of the points that count, in the order of the records."""
    counted: list[tuple[str, int, float]] = []
    for batch in bodies(layout, execution):
        if isinstance(batch, MetricsBatch):
            counted = [point for point in counted if point[0] not in batch.restarts]
            counted += [(point.key, point.step, point.value) for point in batch.points]
    return counted


def parameters(layout: AttemptLayout) -> dict[str, Any]:
    reports = [body for body in bodies(layout) if isinstance(body, ParametersReport)]
    return {name: value for report in reports for name, value in report.parameters.items()}


def tags(layout: AttemptLayout) -> dict[str, str]:
    reports = [body for body in bodies(layout) if isinstance(body, ParametersReport)]
    return {name: value for report in reports for name, value in report.tags.items()}


def media(layout: AttemptLayout, execution: int = 1) -> list[MediaItem]:
    return [item for body in bodies(layout, execution) if isinstance(body, MediaReport) for item in body.items]


def events(layout: AttemptLayout) -> list[WorkerEvent]:
    return [event for body in bodies(layout) if isinstance(body, EventsBatch) for event in body.events]
