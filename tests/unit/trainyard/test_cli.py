"""Commands: their requests, output and exit codes."""

import json

import httpx
import pytest
import yaml

from tests.unit.trainyard.fake_service import TIME, attempt, csv, error, job, log, metrics, page, sse, status, streamed

STREAM = "/v1/jobs/a1/stream"
SPEC = {"version": 1, "task": "regression", "model": {"source": "builtin", "name": "mlp"}, "optimizer": {"lr": 0.1}}
PRESET = {"object": "template", "name": "mlp_parity", "description": "A small\nnetwork.", "spec": SPEC}
CHECKPOINT = {
    "id": "ck1",
    "job_id": "a1",
    "step": 92,
    "size_bytes": 481000,
    "digest": "sha256:" + "0" * 64,
    "world_size": 2,
    "execution": 1,
    "metrics": {"eval/loss": 0.25},
    "path": "/runs/a1/checkpoints/step-0000000092",
    "seconds": 12.5,
    "created_at": TIME,
    "best": True,
    "latest": True,
}
EVENT = {"id": "evt_1", "job_id": "a1", "type": "created", "level": "info", "message": "accepted", "created_at": TIME}


def lines(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


class TestSubmit:
    def test_set_overrides_fields_of_a_file(self, service, run, tmp_path):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
        service.on("POST", "/v1/jobs", job("a1"))
        done = run(
            "submit", "spec.yaml", "--set", "optimizer.lr=1e-3", "--set", "model={source: builtin, name: gpt}",
            "--set", "schedule.name=cosine", "--gpus", "3", "--name", "mine", "--idempotency-key", "k",
        )  # fmt: skip
        assert done.stdout == "job a1 (digits-ddp): http://trainyard.test/jobs/a1\nfollow it with: trainyard watch a1\n"
        assert json.loads(service.requests[0].content) == {
            **SPEC,
            "optimizer": {"lr": "1e-3"},
            "model": {"source": "builtin", "name": "gpt"},
            "schedule": {"name": "cosine"},
            "gpus": 3,
            "name": "mine",
        }
        assert service.requests[0].headers["idempotency-key"] == "k"

    @pytest.mark.parametrize(
        ("setting", "sent"),
        [
            ("metadata.a=1", {"metadata": {"a": "1"}}),
            ("metadata.a=1.50", {"metadata": {"a": "1.50"}}),
            ("metadata.a=true", {"metadata": {"a": "true"}}),
            ("metadata.date=2026-01-01", {"metadata": {"date": "2026-01-01"}}),
            ('metadata.a="1"', {"metadata": {"a": "1"}}),
            ("metadata={a: 1}", {"metadata": {"a": "1"}}),
            ("name=0123", {"name": "0123"}),
            ("name=run #3: slow", {"name": "run #3: slow"}),
            ("name='run 3'", {"name": "run 3"}),
            ("argv=[train.py, --steps, 10]", {"argv": ["train.py", "--steps", "10"]}),
            ("resume_from=null", {"resume_from": None}),
            ("gpus=2", {"gpus": 2}),
            ("compile=true", {"compile": True}),
        ],
    )
    def test_set_value_is_text_where_the_field_is_text(self, service, run, setting, sent):
        service.on("POST", "/v1/jobs", job("a1"))
        assert run("submit", "-", "--set", setting, input=json.dumps(SPEC)).exit_code == 0
        assert json.loads(service.requests[0].content) == {**SPEC, **sent}

    def test_preset_is_submitted(self, service, run):
        service.on("GET", "/v1/templates/mlp_parity", PRESET).on("POST", "/v1/jobs", job("a1"))
        assert run("submit", "mlp_parity").exit_code == 0
        assert json.loads(service.requests[1].content) == SPEC

    def test_standard_input_and_json(self, service, run):
        service.on("POST", "/v1/jobs", job("a1"))
        (answer,) = lines(run("submit", "-", "--json", input=json.dumps(SPEC)))
        assert answer["id"] == "a1"

    def test_watch_follows_the_job_to_its_end(self, service, run):
        service.on("POST", "/v1/jobs", job("a1")).on("GET", STREAM, streamed(status(1, "succeeded", "completed")))
        service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
        done = run("submit", "-", "--watch", input=json.dumps(SPEC))
        assert done.exit_code == 0
        assert done.stdout.splitlines() == [
            "job a1 (digits-ddp): http://trainyard.test/jobs/a1",
            "succeeded: completed",
            "succeeded; see its metrics with: trainyard metrics a1",
        ]


class TestWatch:
    def watch(self, service, run, ended, *chunks, arguments=()):
        service.on("GET", "/v1/jobs/a1", job("a1", status="running"), ended)
        service.on("GET", STREAM, streamed(*chunks))
        return run("watch", "a1", *arguments)

    def test_shows_events_and_the_latest_progress(self, service, run):
        progress = {"step": 7, "total_steps": 10, "eta_seconds": 61.2}
        update = {"execution": 1, "resumed_from_step": 0, "progress": progress, "points": []}
        update["points"] = [
            {"key": "train/loss", "step": 7, "value": 0.51234567, "time": TIME},
            {"key": "perf/examples_per_second", "step": 7, "value": 2900.4, "time": TIME},
        ]
        done = self.watch(
            service,
            run,
            job("a1", status="succeeded"),
            status(1, "pending", "behind 2 jobs"),
            status(2, "running", "on node1"),
            sse(3, "metrics", update),
            sse(4, "event", {**EVENT, "level": "warning", "message": "rank 1 is slow"}),
            sse(5, "event", EVENT),
            sse(6, "checkpoint", CHECKPOINT),
            status(7, "succeeded", "completed", progress={"step": 10, "total_steps": 10}),
        )
        assert done.stdout.splitlines() == [
            "pending: behind 2 jobs",
            "running: on node1",
            "warning: rank 1 is slow",
            "checkpoint of step 92",
            "succeeded: completed",
            "step 10/10  train loss 0.5123  2,900 examples/s",
            "succeeded; see its metrics with: trainyard metrics a1",
        ]

    def test_failed_job_exits_1_with_rank_message_and_hint(self, service, run):
        failure = {"rank": 1, "host": "n2", "type": "ValueError", "message": "bad\nvalue", "hint": "lower the rate"}
        ended = job("a1", status="failed", status_message="an error of the program", error=failure)
        done = self.watch(service, run, ended, status(1, "failed", "an error of the program"))
        assert done.exit_code == 1
        assert done.stderr.splitlines() == [
            "failed: an error of the program",
            "first error on rank 1 (n2): ValueError: bad value",
            "hint: lower the rate",
            "details: trainyard show a1; run it again: trainyard retry a1",
        ]

    def test_rejected_job_suggests_no_retry(self, service, run):
        ended = job("a1", status="failed", status_reason="rejected", status_message="strategy: needs 3 TiB")
        done = self.watch(service, run, ended, status(1, "failed", "strategy: needs 3 TiB"))
        assert done.stderr.splitlines()[-1] == "details: trainyard show a1"

    def test_cancelled_job_exits_3(self, service, run):
        ended = job("a1", status="cancelled", status_message="asked for by admin")
        done = self.watch(service, run, ended, status(1, "cancelled"))
        assert (done.exit_code, done.stderr) == (3, "cancelled: asked for by admin\n")

    def test_json_prints_one_event_per_line(self, service, run):
        ended = job("a1", status="succeeded")
        chunks = [metrics(1, train__loss=float("nan")), status(2, "succeeded", "completed")]
        done = self.watch(service, run, ended, *[c.replace(b"NaN", b'"NaN"') for c in chunks], arguments=["--json"])
        first, second = lines(done)
        assert first["id"] == "1"
        assert first["type"] == "metrics"
        assert first["data"]["points"] == [{"key": "train/loss", "step": 1, "value": "NaN", "time": TIME}]
        assert second["data"]["status"] == "succeeded"

    def test_lost_and_restored_connection_are_reported(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", status="running"), job("a1", status="succeeded"))
        service.on(
            "GET",
            STREAM,
            streamed(status(1, "running", "x"), httpx.ReadError("cut")),
            httpx.ConnectError("refused"),
            streamed(status(2, "succeeded", "y")),
        )
        assert run("watch", "a1").stdout.splitlines()[1:4] == [
            "connection lost, waiting for the service: the connection to http://trainyard.test failed: cut",
            "reconnected",
            "succeeded: y",
        ]

    def test_ctrl_c_stops_watching_and_leaves_the_job_running(self, service, run):
        def interrupt(_):
            raise KeyboardInterrupt

        service.on("GET", "/v1/jobs/a1", job("a1", status="running")).on("GET", STREAM, interrupt)
        done = run("watch", "a1")
        assert done.exit_code == 130
        assert done.stderr == "stopped watching; the job continues. To cancel it: trainyard cancel a1\n"
        assert all(request.method == "GET" for request in service.requests)


class TestJobs:
    def test_list(self, service, run):
        progress = {"step": 5, "total_steps": 10}
        running = job("a2", status="running", progress=progress, metrics={"train/loss": 0.25}, name="[bold]x\x1b[31m")
        service.on("GET", "/v1/jobs", page(running, job("a1")))
        head, first, second = run("list").stdout.splitlines()
        assert head.split() == ["JOB", "NAME", "STATUS", "STEP", "TRAIN", "LOSS", "CREATED", "BY"]
        assert first.split()[:5] == ["a2", "[bold]x", "running", "5/10", "0.25"]
        assert second.split()[:5] == ["a1", "digits-ddp", "queued", "-", "-"]

    def test_list_as_json_prints_one_job_per_line(self, service, run):
        service.on("GET", "/v1/jobs", page(job("a1"), more=True), page(job("a2")))
        printed = lines(run("list", "--all", "--json", "--status", "queued"))
        assert [one["id"] for one in printed] == ["a1", "a2"]
        assert service.requests[0].url.params["status"] == "queued"

    def test_list_shows_the_loss_and_step_of_a_program(self, service, run):
        metrics = {"Loss/train": 0.5, "Loss/val": 0.75}
        progress = {"step": 39, "total_steps": None}
        service.on("GET", "/v1/jobs", page(job(progress=progress, metrics=metrics, loss_metric="Loss/train")))
        assert run("list").stdout.splitlines()[1].split()[3:5] == ["39", "0.5"]

    def test_empty_list_suggests_a_submission(self, service, run):
        service.on("GET", "/v1/jobs", page())
        done = run("list")
        assert (done.stdout, done.stderr) == ("", "no jobs yet; try: trainyard submit digits_ddp --watch\n")

    def test_show_as_json_prints_the_whole_resource(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", metrics={"train/loss": "Infinity"}))
        (printed,) = lines(run("show", "a1", "--json"))
        empty = ("status_reason", "estimated_start", "started_at", "finished_at", "progress", "attempt")
        assert printed == {
            **job("a1", metrics={"train/loss": "Infinity"}),
            "metadata": {},
            "parameters": {},
            "tags": {},
            "metrics_omitted": 0,
            "archived": False,
            "values": None,
            "advice": [],
            **dict.fromkeys((*empty, "last_checkpoint_step", "error", "failure_summary", "origin")),
            **dict.fromkeys(("condition", "disk_bytes", "sweep_id", "notes", "project")),
            **dict.fromkeys(("loss_metric", "evaluation_metric")),
        }

    def test_show_prints_the_users_line_and_fixes(self, service, run):
        failure = {"rank": 0, "type": "KeyError", "message": "'hot'", "traceback": "Traceback\n  long"}
        frame = {"file": "train.py", "line": 4, "function": "lookup", "source": "return table[name]\n       ~~~~~"}
        changes = [
            {"field": "optimizer.lr", "before": 1.0, "after": 0.1, "meaning": "Learning rate."},
            {"field": "resume_from", "before": None, "after": "a1:7", "meaning": ""},
        ]
        fixes = [{"fields": {"optimizer.lr": 0.1}, "note": "a tenth", "changes": changes}]
        summary = {"frame": frame, "is_traceback": True, "fixes": fixes}
        failed = job(
            "a1", status="failed", status_message="rank 0: KeyError: 'hot'", error=failure, failure_summary=summary
        )
        service.on("GET", "/v1/jobs/a1", {**failed, "last_checkpoint_step": 7})
        shown = run("show", "a1").stdout.splitlines()
        assert [line.strip() for line in shown[-7:]] == [
            "train.py, line 4, in lookup",
            "return table[name]",
            "~~~~~",
            "fix: trainyard fix a1 optimizer.lr=0.1",
            "optimizer.lr  1.0 -> 0.1  (a tenth)",
            "resume_from   absent -> a1:7",
            "the whole traceback: trainyard show a1 --traceback",
        ]
        assert sum("KeyError" in line for line in shown) == 1
        assert run("show", "a1", "--traceback").stdout.splitlines()[-2:] == ["Traceback", "  long"]
        service.on(
            "GET", "/v1/jobs/a2", {**failed, "failure_summary": {"last_lines": ["no such dataset"], "fixes": fixes}}
        )
        shown = [line.strip() for line in run("show", "a2").stdout.splitlines()]
        assert shown[-5:-2] == ["last output:", "no such dataset", "fix: trainyard fix a1 optimizer.lr=0.1"]

    @pytest.mark.parametrize(
        ("labels", "shown"),
        [
            ({"git_commit": "abc", "git_branch": "main", "git_dirty": "yes"}, "abc on main, with uncommitted changes"),
            ({"git_commit": "abc", "git_dirty": "no"}, "abc"),
        ],
    )
    def test_show_prints_the_commit(self, service, run, labels, shown):
        service.on("GET", "/v1/jobs/a1", job("a1", metadata=labels))
        assert f"commit      {shown}\n" in run("show", "a1").stdout

    def test_show_prints_what_the_program_reported(self, service, run):
        reported = {
            "parameters": {"lr": 0.0003, "amp": True, "name": "a\x1b[0m"},
            "tags": {"team": "nlp"},
            "notes": "try",
        }
        service.on("GET", "/v1/jobs/a1", job("a1", **reported))
        text = run("show", "a1").stdout
        for name, value in (("lr", "0.0003"), ("amp", "true"), ("team", "nlp"), ("notes", "try")):
            assert any(line.split() == [name, value] for line in text.splitlines())
        assert "\x1b" not in text

    def test_list_is_filtered_by_parameters(self, service, run):
        service.on("GET", "/v1/jobs", page())
        run("list", "--param", "lr=3e-4")
        assert service.requests[-1].url.params["parameters[lr]"] == "3e-4"

    def test_show_of_a_failed_job(self, service, run):
        failure = {"rank": 0, "type": "OutOfMemoryError", "message": "2 GB", "traceback": "Traceback\x1b[0m\n  here"}
        failed = job(
            "a1",
            status="failed",
            status_reason="out_of_memory",
            status_message="no memory left",
            attempt=attempt(2, scheduler_id="77", nodes=["n1", "n2"]),
            started_at=TIME,
            finished_at="2026-01-02T03:06:10.000Z",
            error=failure,
        )
        service.on("GET", "/v1/jobs/a1", failed)
        shown = run("show", "a1").stdout.splitlines()
        assert "status      failed (out_of_memory): no memory left" in shown
        assert "runtime     2 min 5 s" in shown
        assert "attempt     2, local job 77 on n1, n2" in shown
        assert shown[-3:] == ["first error on rank 0: OutOfMemoryError: 2 GB", "Traceback", "  here"]

    @pytest.mark.parametrize("reference", ["bbbb", "job_01bb", "01bb", "BBBB"])
    def test_abbreviated_id_is_resolved(self, service, run, reference):
        service.on("GET", "/v1/jobs", page(job("job_01aaaa"), job("job_01bbbb")))
        (printed,) = lines(run("show", reference, "--json"))
        assert printed["id"] == "job_01bbbb"

    def test_short_name_is_resolved(self, service, run):
        service.on("GET", "/v1/jobs", page(job("job_01cc", name="gpt")))
        (printed,) = lines(run("show", "gpt", "--json"))
        assert printed["id"] == "job_01cc"

    def test_name_refers_to_its_newest_job(self, service, run):
        jobs = (job("job_01cc", name="other"), job("job_01bb", name="mine"), job("job_01aa", name="mine"))
        service.on("GET", "/v1/jobs", page(*jobs))
        (printed,) = lines(run("show", "mine", "--json"))
        assert printed["id"] == "job_01bb"

    def test_last(self, service, run):
        service.on("GET", "/v1/jobs", page(job("a9"), more=True))
        (printed,) = lines(run("show", "last", "--json"))
        assert printed["id"] == "a9"
        assert dict(service.requests[0].url.params) == {"order": "desc", "limit": "1"}

    def test_cancel_and_wait(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1"), job("a1", status="cancelling"), job("a1", status="cancelled"))
        service.on("POST", "/v1/jobs/a1/cancel", httpx.Response(202, json=job("a1", status="cancelling")))
        (printed,) = lines(run("cancel", "a1", "--wait", "--json"))
        assert printed["status"] == "cancelled"

    def test_profile_requests_a_trace_of_a_running_job(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.on("POST", "/v1/jobs/a1/profile", httpx.Response(202, json=job("a1")))
        assert "trace of 2 step(s) requested" in run("profile", "a1", "--steps", "2", "--rank", "1").stdout
        assert json.loads(service.requests[-1].content) == {"steps": 2, "ranks": [1]}


class TestLogs:
    PATH = "/v1/jobs/a1/logs"

    def test_whole_log_is_printed_without_escape_sequences(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", attempt=attempt(1)))
        text = "a\x1b[31mb\r\nü".encode()
        service.on("GET", self.PATH, log(text[:-1], 0), log(text[-1:], len(text) - 1), log(b"", len(text)))
        assert run("logs", "a1").stdout == "ab\nü"
        queries = [dict(request.url.params) for request in service.requests[1:]]
        assert [one["offset"] for one in queries] == ["0", str(len(text) - 1), str(len(text))]

    def test_json_lines(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", attempt=attempt(3)))
        service.on("GET", self.PATH, log(b"x\n", 40), log(b"", 42))
        printed = lines(run("logs", "a1", "--tail", "1", "--rank", "launch", "--json"))
        assert printed == [{"attempt": 3, "rank": "launch", "offset": 40, "text": "x\n"}]
        assert dict(service.requests[1].url.params) == {"rank": "launch", "attempt": "3", "tail": "1"}

    def test_follow_continues_through_restarts_and_attempts(self, service, run):
        running, second = (job("a1", status="running", attempt=attempt(n)) for n in (1, 2))
        over = job("a1", status="succeeded", attempt=attempt(2))
        service.on("GET", "/v1/jobs/a1", job("a1"), job("a1"), running, running, second, over)
        service.on(
            "GET",
            self.PATH,
            error(404, "none yet"),
            *[httpx.ConnectError("refused")] * 5,
            log(b"one\n", 0),
            log(b"", 4),
            log(b"late\n", 4),
            log(b"", 9),
            log(b"two\n", 0),
            log(b"end\n", 4),
            log(b"", 8),
        )
        done = run("logs", "a1", "-f")
        assert done.exit_code == 0
        assert done.stdout == "one\nlate\ntwo\nend\n"
        waited, started, lost = done.stderr.splitlines()
        assert waited == "waiting for the log; the job is queued: waits for the reconciler"
        assert started.startswith("waiting for the log; the job is running: ")
        assert lost.startswith("connection lost, waiting for the service: cannot connect")

    def test_changes_of_a_waiting_job_are_printed(self, service, run):
        failed = {"status_message": "`after` requires jobs to succeed: prepare failed."}
        waits = job("a1", status_message="Waiting to be submitted.")
        over = job("a1", status="cancelled", attempt=None, **failed)
        service.on("GET", "/v1/jobs/a1", waits, waits, job("a1", status="pending"), job("a1", **failed), over)
        assert [line.split("is ")[1].split(":")[0] for line in run("logs", "a1", "-f").stderr.splitlines()[:3]] == [
            "queued",
            "pending",
            "queued",
        ]

    def test_following_an_unknown_rank_ends_with_an_error(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed", attempt=attempt(1)))
        service.on("GET", self.PATH, error(404, "there is no log of rank 9 in attempt 1; there are: 0, 1"))
        done = run("logs", "a1", "-f", "--rank", "9")
        assert done.exit_code == 6
        assert done.stderr == "error: there is no log of rank 9 in attempt 1; there are: 0, 1\n"


class TestMetrics:
    PATH = "/v1/jobs/a1/metrics"

    def answer(self, service, *series):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        listed = [
            {"key": key, "steps": list(range(1, len(v) + 1)), "values": v, "times": [TIME] * len(v)}
            for key, v in series
        ]
        service.on("GET", self.PATH, {"object": "metrics", "job_id": "a1", "series": listed})

    def test_table(self, service, run):
        self.answer(service, ("train/loss", [8, 4, 2, 1]), ("train/lr", ["NaN", 1, 1]), ("empty", []))
        rows = [row.split() for row in run("metrics", "a1").stdout.splitlines()]
        assert rows == [
            ["METRIC", "LAST", "MIN", "MAX", "STEP", "CURVE"],
            ["train/loss", "1", "1", "8", "4", "█▄▂▁"],
            ["train/lr", "1", "1", "1", "3", "x▁▁"],
        ]

    def test_single_metric_is_plotted(self, service, run):
        self.answer(service, ("train/loss", [8, 4, 2, 1]))
        shown = run("metrics", "a1", "--key", "train/loss").stdout.splitlines()
        assert shown[0] == "train/loss: 1 at step 4"
        assert len(shown) == 10
        assert service.requests[1].url.params.get_list("key") == ["train/loss"]

    def test_json(self, service, run):
        self.answer(service, ("train/loss", [1, "-Infinity"]))
        (printed,) = lines(run("metrics", "a1", "--json"))
        series = {"key": "train/loss", "steps": [1, 2], "values": [1.0, "-Infinity"], "times": [TIME] * 2}
        assert printed.pop("axis") == "step"
        expected = [{**series, "x": None, "truncated": False}]
        assert printed == {"object": "metrics", "job_id": "a1", "series": expected, "series_omitted": 0}

    def test_csv_has_every_point(self, service, run):
        text = "key,step,value,time\ntrain/loss,1,nan,2026-01-02T03:04:05+00:00\n"
        service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", self.PATH, csv(text))
        assert run("metrics", "a1", "--csv").stdout == text
        assert service.requests[1].url.params["max_points"] == "1000000"

    def test_metrics_of_several_jobs_share_a_table(self, service, run):
        for name, values in (("a1", [8, 4]), ("b2", [8, 2])):
            one = {"key": "train/loss", "steps": [1, 2], "values": values, "times": [TIME] * 2, "x": [10.0, 3690.0]}
            service.on("GET", f"/v1/jobs/{name}", job(name))
            answer = {"object": "metrics", "job_id": name, "axis": "time", "series": [one]}
            service.on("GET", f"/v1/jobs/{name}/metrics", answer)
        rows = [" ".join(row.split()) for row in run("metrics", "a1", "b2", "--x", "time").stdout.splitlines()]
        assert rows == [
            "METRIC JOB LAST MIN MAX STEP SECONDS CURVE",
            "train/loss a1 4 4 8 2 1 h 1 min █▁",
            "train/loss b2 2 2 8 2 1 h 1 min █▁",
        ]
        assert service.requests[-1].url.params["x"] == "time"
        drawn = run("metrics", "a1", "b2", "a1", "--x", "time", "--key", "train/loss").stdout.splitlines()
        assert drawn[0] == "train/loss of a1: 4 at step 2, 1 h 1 min of training"
        assert (len(drawn), drawn[9].split()) == (20, ["10", "3690"])
        assert [one["job_id"] for one in lines(run("metrics", "a1", "b2", "--json"))] == ["a1", "b2"]

    def test_csv_of_several_jobs_has_a_job_column(self, service, run):
        for name in ("a1", "b2"):
            text = f"key,step,value,time\nlr,1,0.{name[1]},2026-01-02T03:04:05+00:00\n"
            service.on("GET", f"/v1/jobs/{name}", job(name))
            service.on("GET", f"/v1/jobs/{name}/metrics", csv(text))
        assert run("metrics", "a1", "b2", "--csv").stdout.splitlines() == [
            "job,key,step,value,time",
            "a1,lr,1,0.1,2026-01-02T03:04:05+00:00",
            "b2,lr,1,0.2,2026-01-02T03:04:05+00:00",
        ]

    def test_curve_without_finite_values_has_no_minimum(self, service, run):
        self.answer(service, ("train/loss", ["NaN", "Infinity"]))
        assert run("metrics", "a1").stdout.splitlines()[1].split() == ["train/loss", "inf", "nan", "nan", "2", "xx"]

    @pytest.mark.parametrize("how", [(), ("--csv",), ("--json",)])
    def test_unknown_metric_of_an_ended_job_is_an_error(self, service, run, how):
        empty = "key,step,value,time\n" if how == ("--csv",) else {"object": "metrics", "job_id": "a1", "series": []}
        first = csv(empty) if isinstance(empty, str) else empty
        lr = {"key": "lr", "steps": [1], "values": [1.0], "times": [TIME]}
        service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
        service.on("GET", self.PATH, first, {"object": "metrics", "job_id": "a1", "series": [lr]})
        result = run("metrics", "a1", "--key", "loss", *how)
        assert result.exit_code == 6
        assert "job a1 has no metrics named loss; it has: lr" in result.stderr

    def test_missing_steps_are_reported(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
        service.on("GET", self.PATH, {"object": "metrics", "job_id": "a1", "series": []})
        result = run("metrics", "a1", "--key", "lr", "--from-step", "9")
        assert (result.exit_code, result.stderr) == (0, "no metrics named lr from step 9 on\n")

    def test_job_without_metrics_is_reported(self, service, run):
        self.answer(service)
        assert run("metrics", "a1").stderr == "no metrics yet\n"

    def test_ended_job_without_metrics_is_reported(self, service, run):
        for name in ("a1", "a2"):
            service.on("GET", f"/v1/jobs/{name}", job(name, status="succeeded"))
            service.on("GET", f"/v1/jobs/{name}/metrics", {"object": "metrics", "job_id": name, "series": []})
        assert run("metrics", "a1").stderr == "job a1 ended without metrics\n"
        assert run("metrics", "a1", "a2").stderr == "these jobs ended without metrics\n"
        none = [{"job_id": name, "series": []} for name in ("a1", "a2")]
        service.on("GET", "/v1/metrics", {"object": "list", "data": none})
        assert "these jobs ended without metrics\n" in run("compare", "a1", "a2").stderr


class TestHistory:
    def test_events(self, service, run):
        moved = {**EVENT, "type": "status", "message": "on n1", "data": {"status": "running"}}
        broken = {**EVENT, "level": "error", "message": "it\nbroke"}
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.on("GET", "/v1/jobs/a1/events", page(EVENT, moved, broken))
        assert run("events", "a1").stdout.splitlines() == [
            "2026-01-02 03:04:05Z  created                     accepted",
            "2026-01-02 03:04:05Z  status                      running: on n1",
            "2026-01-02 03:04:05Z  created                     error: it broke",
        ]
        assert service.requests[1].url.params["order"] == "asc"

    def test_events_as_json(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs/a1/events", page(EVENT))
        assert lines(run("events", "a1", "--json")) == [{"object": "event", "data": {}, **EVENT}]

    def test_checkpoints(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1")).on(
            "GET", "/v1/jobs/a1/checkpoints", page(CHECKPOINT | {"best": True, "latest": True})
        )
        _, shown, where = run("checkpoints", "a1").stdout.splitlines()
        assert shown.startswith("92    best latest  470 KiB")
        assert shown.endswith("eval/loss 0.25  step-0000000092")
        assert where == "in /runs/a1/checkpoints"
        assert lines(run("checkpoints", "a1", "--json")) == [
            {"object": "checkpoint", **CHECKPOINT, "best": True, "latest": True}
        ]

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            ({"keep_last": 2, "keep_best": None}, "keeps the newest 2"),
            ({"keep_last": 1, "keep_best": {"metric": "eval/loss"}}, "keeps the newest, and the best by eval/loss"),
        ],
    )
    def test_checkpoints_end_with_the_retention_policy(self, service, run, policy, expected):
        service.on("GET", "/v1/jobs/a1", job("a1", spec={"checkpoint": policy}))
        service.on("GET", "/v1/jobs/a1/checkpoints", page(CHECKPOINT))
        assert run("checkpoints", "a1").stdout.splitlines()[-1] == expected

    def test_script(self, service, run):
        answer = {"job_id": "a1", "attempt": 1, "script": "#!/bin/sh\nexec \x1b[2Jworker"}
        service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs/a1/script", answer)
        assert run("script", "a1").stdout == "#!/bin/sh\nexec worker\n"


class TestTemplates:
    def test_list(self, service, run):
        service.on("GET", "/v1/templates", page(PRESET))
        assert run("templates").stdout.splitlines()[1] == "mlp_parity  A small network."
        assert lines(run("templates", "--json")) == [PRESET]

    def test_template_prints_yaml_that_submit_accepts(self, service, run, tmp_path):
        service.on("GET", "/v1/templates/mlp_parity", PRESET).on("POST", "/v1/jobs", job("a1"))
        shown = run("templates", "mlp_parity").stdout
        assert shown == (
            "# A small network.\nversion: 1\ntask: regression\n"
            "model: {source: builtin, name: mlp}\noptimizer: {lr: 0.1}\n"
        )
        (tmp_path / "mine.yaml").write_text(shown)
        assert run("submit", "mine.yaml").exit_code == 0
        assert json.loads(service.requests[-1].content) == SPEC


class TestServe:
    def test_options_become_settings_of_the_service(self, run, monkeypatch, tmp_path):
        started = []
        monkeypatch.setattr("os.execve", lambda *arguments: started.append(arguments))
        assert run("serve", "--port", "9", "--state-dir", "here", "--host", "0.0.0.0").exit_code == 0
        ((_, command, environment),) = started
        assert command[1:] == ["-P", "-m", "service", "serve"]
        assert {key: value for key, value in environment.items() if key.startswith("TRAINYARD_")} == {
            "TRAINYARD_HOST": "0.0.0.0",
            "TRAINYARD_PORT": "9",
            "TRAINYARD_STATE_DIR": str(tmp_path / "here"),
        }

    def test_missing_service_package_is_an_error(self, run, monkeypatch):
        monkeypatch.setattr("trainyard.cli.service_program.find_spec", lambda name: None)
        done = run("serve")
        assert done.exit_code == 2
        assert "pip install 'trainyard[service,worker]'" in done.stderr
