"""Curves are serialized as pydantic does, but in parts."""

import json
import math
from datetime import UTC, datetime

from service.metrics.export import curves_json
from trainyard.contract.wire.curves import ComparisonResource, MetricsResource, Series

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def series(key: str, count: int, *, x: bool = False) -> Series:
    values = [(math.nan, math.inf, -math.inf, 0.1, 1e300)[number % 5] for number in range(count)]
    coordinates = [number / 3 for number in range(count)] if x else None
    return Series(key=key, steps=list(range(count)), values=values, times=[NOW] * count, x=coordinates, truncated=x)


def test_parts_are_the_document_of_pydantic() -> None:
    curves = [series("a", 0), series("train/loss", 1), series("b", 2500, x=True)]
    one = MetricsResource(job_id="job_1", axis="time", series=curves, series_omitted=3)
    for resource in (one, MetricsResource(job_id="job_2", series=[]), ComparisonResource(data=[one, one])):
        text = b"".join(curves_json(resource))
        assert json.loads(text) == json.loads(resource.model_dump_json())


def test_no_part_has_many_points() -> None:
    resource = MetricsResource(job_id="job_1", series=[series("a", 50_000)])
    assert max(map(len, curves_json(resource))) < 50_000
