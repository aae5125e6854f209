"""Filters of lists, and lists of a job's events, attempts and checkpoints."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
import typer

from tests.unit.trainyard.fake_service import TIME, attempt, error, job, page
from trainyard.cli.arguments import parse_date

SWEEP = "swp_01kdvdna00az9cxjnszk8v8abh"


class TestParseDate:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
            ("2026-01-31 12:30", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
            ("2026-01-31T12:30:00Z", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
            ("2026-01-31T12:30:00+02:00", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
        ],
    )
    def test_date_without_an_offset_is_utc(self, text, expected):
        assert parse_date(text) == expected

    @pytest.mark.parametrize(("text", "seconds"), [("30min", 1800), ("2h", 7200), ("3d", 3 * 86400), ("1w", 7 * 86400)])
    def test_duration_is_subtracted_from_now(self, text, seconds):
        assert abs(datetime.now(UTC) - timedelta(seconds=seconds) - parse_date(text)) < timedelta(seconds=5)

    @pytest.mark.parametrize("text", ["", "yesterday", "2", "h", "-2h", "2026-13-01", "999999w"])
    def test_invalid_date_error_lists_the_formats(self, text):
        with pytest.raises(typer.BadParameter, match="2026-01-31"):
            parse_date(text)


class TestJobs:
    def test_list_filters_by_text_sweep_and_date(self, run, service):
        service.on("GET", "/v1/jobs", page(job("a1")))
        service.on("GET", f"/v1/sweeps/{SWEEP}", httpx.Response(200, json=sweep()))
        assert run("list", "--search", "LoRA", "--sweep", SWEEP, "--since", "2026-01-31").exit_code == 0
        sent = service.requests[-1].url.params
        assert (sent["search"], sent["sweep"]) == ("LoRA", SWEEP)
        assert sent["created_after"].startswith("2026-01-31T00:00:00")

    def test_invalid_date_is_a_usage_error(self, run, service):
        result = run("list", "--since", "yesterday")
        assert (result.exit_code, service.requests) == (2, [])
        assert "2h" in result.stderr


class TestAttempts:
    def test_attempt_shows_nodes_reason_and_runtime(self, run, service):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        later = "2026-01-02T03:05:05.000Z"
        ended = attempt(number=1, nodes=["n1", "n2"], started_at=TIME, ended_at=later, exit_reason="preempted")
        service.on("GET", "/v1/jobs/a1/attempts", page(ended))
        shown = run("attempts", "a1").stdout
        for there in ("n1, n2", "preempted", "1 min"):
            assert there in shown

    def test_attempt_shows_the_evidence_of_its_end(self, run, service, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        service.on("GET", "/v1/jobs/a1", job("a1"))
        evidence = {"scheduler_end": "Slurm: NODE_FAIL; node1 is down: Not responding", "failure": "rank 1: SIGKILL: x"}
        service.on("GET", "/v1/jobs/a1/attempts", page(attempt(number=1, exit_reason="node_failure", **evidence)))
        assert "Slurm: NODE_FAIL; node1 is down: Not responding; rank 1: SIGKILL: x" in run("attempts", "a1").stdout

    def test_job_without_attempts_is_reported(self, run, service):
        service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs/a1/attempts", page())
        assert run("attempts", "a1").stderr == "no attempt yet\n"

    def test_script_of_an_older_attempt_is_printed(self, run, service):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        script = {"object": "script", "job_id": "a1", "attempt": 1, "scheduler": "local", "script": "#!/bin/sh\n"}
        service.on("GET", "/v1/jobs/a1/script", script)
        assert run("script", "a1", "--attempt", "1").stdout == "#!/bin/sh\n"
        assert service.requests[-1].url.params["attempt"] == "1"


class TestTokens:
    def test_unknown_token_name_lists_its_tokens(self, run, service):
        gone = error(404, "there is no token 'anna'", "not_found_error", "token_not_found")
        service.on("DELETE", "/v1/tokens/anna", gone).on("DELETE", "/v1/tokens/eve", gone)
        tokens = [token("t1", "anna"), token("t2", "bob"), token("t3", "anna", revoked_at=TIME), token("t4", "anna")]
        service.on("GET", "/v1/tokens", page(*tokens))
        result = run("tokens", "revoke", "anna")
        assert result.exit_code == 2
        assert result.stderr == "error: 'anna' is a name; use the id of one of its tokens: t1, t4\n"
        assert run("tokens", "revoke", "eve").exit_code == 6


def token(id_, name, **changes):
    return {"id": id_, "name": name, "role": "user", "may_run_code": False, "created_at": TIME, **changes}


def sweep():
    plain = {"id": SWEEP, "name": "rates", "created_by": "anna", "created_at": TIME}
    return {**plain, "fields": ["seed"], "size": 1, "counts": {"queued": 1}, "members": []}
