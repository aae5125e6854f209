"""Mistakes of new users: unanswered prompts, mistyped ids, files instead of folders, narrow terminals."""

import asyncio
import json
import sys

import httpx
import pytest
import typer

import trainyard.cli
from tests.unit.trainyard.fake_service import TIME, FakeService, job, page
from tests.unit.trainyard.test_cli import CHECKPOINT
from tests.unit.trainyard.test_cli_errors import UNKNOWN
from trainyard.cli import output, tables
from trainyard.cli.output import StatusText
from trainyard.client import ConflictError, NotFoundError

SUCCEEDED = job("a1", status="succeeded")
FILES = "/v1/jobs/a1/export/files"
ULID = "01kdvdna00az9cxjnszk8v8abh"
SWEEP_IDS = (f"swp_{ULID}", "swp_01kdvdna00az9cxjnszk8v8xyz")


def ends(result, code, line):
    assert (result.stderr, result.exit_code) == (f"{line}\n", code)
    assert result.exception is None or isinstance(result.exception, SystemExit)


class TestConfirmation:
    @pytest.fixture(autouse=True)
    def deletable(self, service):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED)

    def deleted(self, service):
        return [request.method for request in service.requests].count("DELETE")

    def test_closed_standard_input_is_an_error(self, service, run):
        line = "error: no answer on standard input; use --yes to delete without a prompt"
        ends(run("delete", "a1", input=""), 2, line)
        assert not self.deleted(service)

    def test_ctrl_c_deletes_nothing(self, service, run, monkeypatch):
        def interrupted(_):
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise typer.Abort from None

        monkeypatch.setattr("typer.confirm", interrupted)
        ends(run("delete", "a1"), 130, "interrupted; not deleted")
        assert not self.deleted(service)

    @pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("\n", 0), ("no\n", 0)])
    def test_only_yes_deletes(self, service, run, answer, count):
        service.on("DELETE", "/v1/jobs/a1", {})
        assert run("delete", "a1", input=answer).exit_code == 0
        assert self.deleted(service) == count


class TestDownload:
    def files(self, service, *names):
        listed = [{"path": name, "size_bytes": 1, "modified_at": TIME} for name in names]
        service.on("GET", FILES, page(*listed))

    @pytest.mark.parametrize(("status", "code"), [("failed", 7), ("running", 7), ("succeeded", 6)])
    def test_missing_export_error_has_the_job_status(self, service, run, status, code):
        service.on("GET", "/v1/jobs/a1", job("a1", status=status))
        self.files(service)
        line = (
            f"error: job a1 has status {status} and has no export; download one of its checkpoints instead, or make a "
            "model of one: trainyard export a1"
        )
        ends(run("download", "a1"), code, line)

    def test_missing_export_raises_in_both_clients(self, service, tmp_path):
        other = FakeService().on("GET", "/v1/jobs/a1", SUCCEEDED)
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed"))
        self.files(service)
        self.files(other)
        with pytest.raises(ConflictError, match="failed and has no export"):
            service.client().download("a1", tmp_path / "x")
        with pytest.raises(NotFoundError, match="succeeded and has no export"):
            asyncio.run(other.async_client().download("a1", tmp_path / "x"))

    def test_download_of_a_missing_checkpoint(self, service, run):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED).on("GET", "/v1/jobs/a1/checkpoints", page(CHECKPOINT))
        line = "error: there is no checkpoint '3'; available steps: 92"
        ends(run("download", "a1", "--checkpoint", "3"), 6, line)
        ends(run("fork", "a1", "--step", "3"), 6, line)

    @pytest.mark.parametrize(("status", "none"), [("succeeded", "no checkpoints"), ("running", "no checkpoint yet")])
    def test_download_from_a_job_without_checkpoints(self, service, run, status, none):
        service.on("GET", "/v1/jobs/a1", job("a1", status=status)).on("GET", "/v1/jobs/a1/checkpoints", page())
        ends(run("checkpoints", "a1"), 0, none)
        ends(run("download", "a1", "--checkpoint", "latest"), 6, f"error: job a1 has {none}")
        ends(run("fork", "a1", "--step", "3"), 6, f"error: job a1 has {none}")

    def test_download_target_that_is_a_file(self, service, run, tmp_path):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED)
        self.files(service, "weights")
        (tmp_path / "afile").write_text("")
        line = "error: cannot write to 'afile': it is a file; name a folder with --to"
        ends(run("download", "a1", "--to", "afile"), 2, line)

    @pytest.mark.parametrize("option", ["--to", "--output"])
    def test_target_has_the_same_options_as_that_of_an_export(self, service, run, tmp_path, option):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED)
        service.on("GET", "/v1/jobs/a1/artifacts/r.txt", httpx.Response(200, content=b"x"))
        assert run("download", "a1", "--artifact", "r.txt", option, "one").exit_code == 0
        assert run("artifacts", "a1", "--download", "r.txt", option, "two").exit_code == 0
        assert (tmp_path / "one" / "r.txt").read_bytes() == (tmp_path / "two" / "r.txt").read_bytes() == b"x"

    def test_unknown_name_of_a_checkpoint_lists_the_valid_ones(self, service, run):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED).on("GET", "/v1/jobs/a1/checkpoints", page(CHECKPOINT))
        line = "error: there is no checkpoint 'first'; use `best`, `latest` or a step; available steps: 92"
        ends(run("download", "a1", "--checkpoint", "first"), 6, line)

    def test_download_target_that_cannot_be_created(self, service, run, tmp_path):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED)
        self.files(service, "weights")
        (tmp_path / "afile").write_text("")
        line = "error: cannot write to 'afile/x': Not a directory; name a folder with --to"
        ends(run("download", "a1", "--to", "afile/x"), 2, line)
        service.on("GET", "/v1/jobs/a1/artifacts/r.txt", httpx.Response(200, content=b"x"))
        line = "error: cannot write to 'afile': it is a file; name a folder with --to"
        ends(run("download", "a1", "--artifact", "r.txt", "--to", "afile"), 2, line)


class TestSweepReferences:
    def listed(self, service):
        one = {"created_by": "anna", "created_at": TIME, "fields": [], "size": 0, "counts": {}}
        both = [{"id": i, "name": "rates", **one} for i in SWEEP_IDS]
        service.on("GET", "/v1/sweeps", page(*both))
        for detail in both:
            service.on("GET", f"/v1/sweeps/{detail['id']}", {**detail, "members": []})

    @pytest.mark.parametrize("reference", [ULID[:-2], f"swp_{ULID}"[:-1], "8ABH", "rates", "last", SWEEP_IDS[0]])
    def test_sweep_is_resolved_like_a_job(self, service, run, reference):
        self.listed(service)
        assert json.loads(run("sweeps", reference, "--json").stdout)["id"] == SWEEP_IDS[0]

    def test_unknown_and_ambiguous_sweep_references(self, service, run):
        self.listed(service)
        for command in ("sweeps", "sweep-cancel"):
            ends(run(command, "nope"), 6, "error: there is no sweep 'nope'; list them with: trainyard sweeps")
        ends(run("sweeps", "swp_01"), 2, "error: 2 sweeps have ids like 'swp_01'; use a longer part")

    def test_malformed_ids_are_not_found(self, run, service):
        service.on("GET", "/v1/tokens", page())
        for message, kind in ((("tokens", "revoke"), "token"), (("webhooks", "test"), "webhook")):
            line = f"error: there is no {kind} 'nope'; list them with: trainyard {kind}s list"
            ends(run(*message, "nope"), 6, line)


class TestPastedIds:
    """Ids come with the blanks that a double click took along."""

    def test_a_job(self, service, run):
        service.on("GET", "/v1/jobs/a1", SUCCEEDED)
        assert json.loads(run("show", " a1 ", "--json").stdout)["id"] == "a1"

    def test_a_sweep(self, service, run):
        TestSweepReferences().listed(service)
        assert json.loads(run("sweeps", f" {SWEEP_IDS[0]}", "--json").stdout)["id"] == SWEEP_IDS[0]


class TestUnknownMetricNames:
    def answer(self, service, status):
        there = {"key": "train/loss", "steps": [1], "values": [1.0], "times": [TIME]}
        none = {"key": "typo", "steps": [], "values": [], "times": []}
        detail = [{"object": "metrics", "job_id": "a1", "series": [one]} for one in (none, there)]
        service.on("GET", "/v1/jobs/a1", job("a1", status=status)).on("GET", "/v1/jobs/a1/metrics", *detail)

    def test_ended_job_lists_the_metrics(self, service, run):
        self.answer(service, "failed")
        line = "error: job a1 has no metrics named typo; it has: train/loss"
        ends(run("metrics", "a1", "--key", "typo"), 6, line)

    def test_running_job_may_still_report_the_metric(self, service, run):
        self.answer(service, "running")
        ends(run("metrics", "a1", "--key", "typo"), 0, "no metrics named typo yet; there are: train/loss")


def test_jobs_of_several_statuses(service, run):
    service.on("GET", "/v1/jobs", page())
    line = "no jobs with status failed or lost"
    ends(run("list", "--status", "failed", "--status", "lost"), 0, line)
    assert service.requests[0].url.params.get_list("status") == ["failed", "lost"]


def test_unknown_status_has_a_suggestion(service, run):
    result = run("list", "--status", "runing")
    assert result.exit_code == 2
    assert "there is no status 'runing'; did you mean 'running'?" in result.stderr


def test_folder_instead_of_a_spec_is_an_error(service, run, tmp_path):
    (tmp_path / "mine").mkdir()
    service.on("GET", "/v1/templates", page({"name": "digits_ddp", "description": "", "spec": {}}))
    ends(run("submit", str(tmp_path)), 2, f"error: {str(tmp_path)!r} is a folder; name a file")
    ends(run("submit", "mine"), 2, "error: 'mine' is a folder, not a preset; use a file in it, or one of: digits_ddp")
    message = "error: there is no file and no preset 'digts_ddp'; did you mean 'digits_ddp'? presets: digits_ddp"
    ends(run("submit", "digts_ddp"), 2, message)


class TestNarrowTerminal:
    HEADINGS = ("JOB", "NAME", "STATUS", "STEP", "LOSS", "CREATED", "BY")
    ROW = (
        f"job_{ULID}",
        "a name of many words",
        StatusText("succeeded"),
        "12000/12000",
        "0.1234",
        "3 min 5 s ago",
        "anna",
    )

    @pytest.fixture
    def shown(self, monkeypatch, capsys):
        def show(width, **options):
            monkeypatch.setattr(tables, "console", lambda: tables.TerminalConsole(width=width, markup=False))
            output.print_table(self.HEADINGS, [self.ROW], **options)
            return capsys.readouterr().out

        return show

    @pytest.mark.parametrize("width", [60, 80])
    def test_keeps_ids_whole(self, shown, width):
        for options in ({}, {"optional": ("BY", "CREATED", "LOSS")}):
            text = shown(width, **options)
            assert f"job_{ULID}" in text
            assert max(map(len, text.splitlines())) <= width

    def test_only_as_many_optional_columns_as_needed_are_dropped(self, shown):
        optional = ("BY", "CREATED", "LOSS")
        assert shown(200, optional=optional).split()[:7] == list(self.HEADINGS)
        assert shown(80, optional=optional).splitlines()[0].split() == ["JOB", "NAME", "STATUS", "STEP"]
        assert len(shown(80, optional=optional).splitlines()) == 2

    def test_curve_fits_on_one_line_or_is_omitted(self, shown):
        curve = "▁▂▃▄▅▆▇█" * 4
        self.HEADINGS, self.ROW = ("METRIC", "LAST", "CURVE"), ("perf/checkpoint_stall_seconds", "0.1234", curve)
        assert curve in shown(70, optional=("CURVE",))
        assert "▁" not in shown(60, optional=("CURVE",))

    @pytest.mark.parametrize("width", [80, 200])
    def test_checkpoint_folder_is_printed_once(self, service, run, monkeypatch, width):
        monkeypatch.setattr(tables, "console", lambda: tables.TerminalConsole(width=width, markup=False))
        folder = f"/shared/runs/of/a/team/with/a/long/name/job_{ULID}/checkpoints"
        saved = [CHECKPOINT | {"step": step, "path": f"{folder}/step-{step:010}"} for step in (5, 10)]
        service.on("GET", "/v1/jobs/a1", SUCCEEDED).on("GET", "/v1/jobs/a1/checkpoints", page(*saved))
        lines = run("checkpoints", "a1").stdout.splitlines()
        assert [line.split()[-1] for line in lines[1:]] == ["step-0000000005", "step-0000000010", folder]

    def test_metric_names_of_checkpoints_are_not_wrapped(self, service, run, monkeypatch):
        monkeypatch.setattr(tables, "console", lambda: tables.TerminalConsole(width=60, markup=False))
        saved = CHECKPOINT | {"best": True, "latest": True, "metrics": {"eval/accuracy": 0.97, "eval/loss": 0.12}}
        service.on("GET", "/v1/jobs/a1", SUCCEEDED).on("GET", "/v1/jobs/a1/checkpoints", page(saved))
        shown = run("checkpoints", "a1").stdout
        assert {"eval/accuracy", "eval/loss", "best", "latest", "92"} <= set(shown.split())
        assert max(map(len, shown.splitlines())) <= 60


@pytest.mark.parametrize("group", ["tokens", "webhooks"])
def test_command_group_without_arguments_prints_its_help(run, group):
    alone, requested = run(group), run(group, "--help")
    assert (alone.stdout, alone.stderr, alone.exit_code) == (requested.stdout, "", 2)
    assert len(alone.stdout.splitlines()) > 5


def test_json_output_prints_only_errors_to_stderr(service, run):
    service.on("GET", "/v1/jobs/digits", UNKNOWN).on("GET", "/v1/jobs", page(job("a1", name="digits")))
    done = run("show", "digits", "--json")
    assert (done.stderr, json.loads(done.stdout)["id"]) == ("", "a1")


def test_interrupt_during_startup_prints_no_traceback(monkeypatch):
    class Slow:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "trainyard.cli.app", Slow())
    with pytest.raises(SystemExit) as left:
        trainyard.cli.main()
    assert left.value.code == 130
