"""The page of a sweep."""

from typing import Any
from urllib.parse import parse_qs

from service.plugins.sweeps.pages import members_address
from tests.unit.service.web.test_jobs_page import NOW
from trainyard.contract.wire.sweeps import SweepDetail


def test_table_of_a_sweep_has_its_fields_and_its_metric_once_known() -> None:
    def columns(**changes: Any) -> list[str]:
        fields = ["optimizer.lr", "no.such.field"]
        known = {"id": "swp_1", "name": "a", "created_by": "ada", "created_at": NOW, "fields": fields, "size": 1}
        sweep = SweepDetail.model_validate({**known, "members": [], "metric": "eval/loss", "best": "job_1", **changes})
        parameters = parse_qs(members_address(sweep).partition("?")[2])
        assert parameters["sweep"] == ["swp_1"]
        return parameters.get("columns", [])

    assert columns() == ["status", "name", "optimizer.lr", "progress", "loss", "eval/loss", "age"]
    assert columns(metric="top 1")[-2] == "`top 1`"
    assert columns(metric="train/loss")[-2] == "loss"
    assert columns(best=None) == []
