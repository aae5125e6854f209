"""What the server and the browser say of the same number is the same."""

import json
import math

import pytest

from service.web import formatting
from service.web.assets import Assets
from tests.support.browser import Visit

pytestmark = [pytest.mark.web]

VALUES = [0, 1, 0.1, 1 / 3, 0.001, 0.00099, 12.345678, 999.95, 1000, 123456, 999999, 1e6, 1.5e-7, 3e12, -0.02, -4e9]
SECONDS = [0, 0.0004, 0.5, 1, 9.4, 10, 59, 59.6, 60, 61, 3599, 3600, 3660, 86399, 86400, 90061, 1e7]


def test_python_and_javascript_format_alike(visit: Visit) -> None:
    rendered = visit.go("/jobs").evaluate(
        """async ([address, values, seconds]) => {
          const { number, size, duration, count } = await import(address);
          return {
            number: values.map((one) => number(one)), size: values.map((one) => size(Math.abs(one))),
            duration: seconds.map(duration), odd: ["NaN", "Infinity", "-Infinity", null].map((one) => number(one)),
            count: count(1234567),
          };
        }""",
        [Assets().url("format.js"), VALUES, SECONDS],
    )
    assert rendered["number"] == [formatting.number(value) for value in VALUES]
    assert rendered["size"] == [formatting.size(abs(value)) for value in VALUES]
    assert rendered["duration"] == [formatting.duration(value) for value in SECONDS]
    assert rendered["odd"] == [formatting.number(value) for value in (math.nan, math.inf, -math.inf, None)]
    assert rendered["count"] == formatting.count(1234567), json.dumps(rendered["count"])
