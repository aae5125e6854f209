"""The metrics that documents and dashboards refer to exist."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from service.core.observability import ServiceMetrics

ROOT = Path(__file__).parents[3]
NAMES = re.compile(r"\btrainyard_[a-z_]+[a-z]\b")


def offered() -> set[str]:
    """Every name that a query may use, at a service to which everything has happened once."""
    metrics = ServiceMetrics()
    metrics.request("GET", "/v1/jobs", 200, 0.1)
    metrics.command("squeue", "ok")
    metrics.submission("accepted")
    metrics.adoption("name")
    metrics.ingested("points", 1)
    text = metrics.render({"running": 1}, 0, 1.0, {}, {}).decode()
    families = list(text_string_to_metric_families(text))
    samples = {sample.name for family in families for sample in family.samples}
    return samples | {family.name for family in families}


def family(name: str) -> str:
    """What a name of a histogram's part is a part of."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_operations_page_names_existing_series() -> None:
    named = set(NAMES.findall((ROOT / "docs" / "operations.md").read_text()))
    assert len(named) > 8
    assert named <= offered()


def test_dashboard_uses_exactly_the_existing_series() -> None:
    board = json.loads((ROOT / "docker" / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queried = {name for query in queries for name in NAMES.findall(query)}
    assert queried <= offered()
    named = set(NAMES.findall((ROOT / "docs" / "operations.md").read_text()))
    assert {family(name) for name in named} == {family(name) for name in queried}
    assert all(query.count("(") == query.count(")") for query in queries)


def test_counters_start_at_zero() -> None:
    metrics = ServiceMetrics()
    metrics.command("squeue", "ok")
    text = metrics.render({}, 0, None, {}, {}).decode()
    assert 'trainyard_submissions_total{outcome="ambiguous"} 0.0' in text
    assert 'trainyard_adoptions_total{how="claim"} 0.0' in text
    assert 'trainyard_scheduler_commands_total{command="squeue",outcome="failed"} 0.0' in text
