"""Failed commands print one line on stderr, never a traceback, and have an exit code."""

import json
import os
import subprocess
import sys

import httpx
import pytest

from tests.unit.trainyard.fake_service import error, job, page

UNKNOWN = error(404, "there is no job 'x1'", "not_found_error", "job_not_found")


def ends(result, code, *lines):
    assert (result.stderr.splitlines(), result.exit_code) == (list(lines), code)
    assert result.stdout == ""


class TestErrors:
    def test_refused_connection(self, service, run):
        service.on("GET", "/v1/jobs", httpx.ConnectError("refused"))
        url = "http://trainyard.test"
        line = f"error: cannot connect to {url}: is TRAINYARD_URL correct, and is the service running?"
        ends(run("list"), 4, line)

    def test_wrong_token(self, service, run):
        service.on("GET", "/v1/jobs", error(401, "a valid token is needed", "authentication_error", "invalid_token"))
        line = "error: a valid token is needed; set it in TRAINYARD_TOKEN, or sign in with: trainyard login"
        ends(run("list"), 5, line)

    def test_insufficient_role(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.on("POST", "/v1/jobs/a1/cancel", error(403, "a viewer's token can only read", "permission_error"))
        ends(run("cancel", "a1"), 5, "error: a viewer's token can only read")

    def test_token_of_another_user(self, service, run):
        service.on("GET", "/v1/audit", error(403, "only an administrator may do this", code="admin_required"))
        line = "error: only an administrator may do this; show your token with: trainyard tokens whoami"
        ends(run("audit"), 5, line)

    def test_address_with_a_path(self, service, run):
        service.on("GET", "/v1/jobs", error(404, "there is no such route", code="route_not_found"))
        line = "error: there is no such route; TRAINYARD_URL must be the service's address without a path"
        ends(run("list"), 6, line)

    def test_bad_spec_with_two_problems(self, service, run, tmp_path):
        (tmp_path / "bad.yaml").write_text("task: regression\ngpus: 0\nstepz: 3\n")
        problems = [
            {"param": "gpus", "message": "must be greater than or equal to 1"},
            {"param": "stepz", "message": "unknown field; did you mean `steps`?"},
        ]
        service.on("POST", "/v1/jobs", error(422, problems[0]["message"], param="gpus", problems=problems))
        ends(
            run("submit", "bad.yaml"),
            2,
            "gpus: must be greater than or equal to 1",
            "stepz: unknown field; did you mean `steps`?",
        )

    def test_yaml_that_does_not_parse(self, service, run, tmp_path):
        (tmp_path / "bad.yaml").write_text("task: [regression\n")
        line = "error: not valid YAML: line 2, column 1: did not find expected ',' or ']'"
        ends(run("submit", "bad.yaml"), 2, line)
        assert service.requests == []

    def test_json_that_does_not_parse(self, run, tmp_path):
        (tmp_path / "bad.json").write_text("{")
        line = "error: not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
        ends(run("submit", "bad.json"), 2, line)

    def test_a_spec_that_is_a_list(self, run):
        line = "error: the spec must be a mapping of fields, like those of: trainyard templates digits_ddp"
        ends(run("submit", "-", input="- 1\n"), 2, line)

    def test_neither_a_file_nor_a_preset(self, service, run):
        presets = [{"name": name, "description": "", "spec": {}} for name in ("digits_ddp", "gpt_stdlib")]
        service.on("GET", "/v1/templates", page(*presets))
        line = "error: there is no file and no preset 'nope'; presets: digits_ddp, gpt_stdlib"
        ends(run("submit", "nope"), 2, line)

    def test_missing_file(self, run):
        ends(run("submit", "some/where.yaml"), 2, "error: there is no file 'some/where.yaml'")

    def test_set_without_a_value(self, service, run):
        odd = "error: --set name=[a] b: the value is not valid YAML (did not find expected <document start>)"
        ends(run("submit", "-", "--set", "name=[a] b", input="task: regression\n"), 2, odd)
        odd = "error: --grid seed=1,[2: the value is not valid YAML (did not find expected ',' or ']')"
        ends(run("sweep", "-", "--grid", "seed=1,[2", input="task: regression\n"), 2, odd)
        line = "error: --set takes path=value, like optimizer.lr=1e-3; not 'gpus'"
        ends(run("submit", "-", "--set", "gpus", input="task: regression\n"), 2, line)

    def test_unknown_job(self, service, run):
        service.on("GET", "/v1/jobs/x1", UNKNOWN)
        ends(run("show", "x1"), 6, "error: there is no job 'x1'; list them with: trainyard list")

    def test_last_job_where_there_is_none(self, service, run):
        service.on("GET", "/v1/jobs", page())
        ends(run("show", "last"), 6, "error: there is no job yet; try: trainyard submit digits_ddp --watch")

    def test_an_abbreviation_of_two_jobs(self, service, run):
        service.on("GET", "/v1/jobs", page(job("job_01aaaa"), job("job_01bbbb")))
        ends(run("show", "01"), 6, "error: there is no /v1/jobs/01")
        ends(run("show", "job_01"), 2, "error: 2 jobs have ids like 'job_01'; use a longer part")

    def test_cancel_of_a_finished_job(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
        message = "job a1 has succeeded already; there is nothing to cancel"
        service.on("POST", "/v1/jobs/a1/cancel", error(409, message, "conflict_error", "job_finished"))
        ends(run("cancel", "a1"), 7, f"error: {message}")

    def test_remaining_jobs_are_cancelled_if_one_cannot_be(self, service, run):
        service.on("GET", "/v1/jobs/b2", job("b2", status="succeeded")).on("GET", "/v1/jobs/a1", job("a1"))
        message = "job b2 has succeeded already; there is nothing to cancel"
        service.on("POST", "/v1/jobs/b2/cancel", error(409, message, "conflict_error", "job_finished"))
        service.on("POST", "/v1/jobs/a1/cancel", job("a1", status="cancelling", status_message="being stopped"))
        done = run("cancel", "b2", "a1")
        assert (done.exit_code, done.stderr) == (7, f"error: {message}\n")
        assert done.stdout == "job a1: cancellation requested; status: cancelling: being stopped\n"

    @pytest.mark.parametrize("command", ["cancel", "pause", "resume", "retry", "delete"])
    def test_nothing_changes_if_one_of_several_jobs_is_missing(self, service, run, command):
        service.on("GET", "/v1/jobs/x1", UNKNOWN).on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs", page())
        ends(run(command, "a1", "x1"), 6, "error: there is no job 'x1'; list them with: trainyard list")
        assert {request.method for request in service.requests} == {"GET"}

    def test_duplicate_arguments_are_sent_once(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1")).on("DELETE", "/v1/jobs/a1", {})
        done = run("delete", "a1", "a1", "-y")
        assert (done.exit_code, done.stdout) == (0, "deleted job a1\n")

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["shwo"], "error: No such command 'shwo'. Did you mean 'show'?"),
            (["status", "last"], "error: No such command 'status'. Did you mean 'show'?"),
            (["scancel", "last"], "error: No such command 'scancel'. Did you mean 'cancel'?"),
            (["xyzzy"], "error: No such command 'xyzzy'."),
            (["show"], "error: Missing argument 'JOB'."),
            (["logs", "a1", "--rank", "first"], "error: --rank takes a number or `launch`, not 'first'"),
        ],
    )
    def test_wrong_usage(self, run, arguments, line):
        ends(run(*arguments), 2, line)

    def test_control_characters_of_server_messages_are_removed(self, service, run):
        service.on("GET", "/v1/jobs/x1", error(404, "no\x1b[2J job\n[red]x\x07\u202e", "not_found_error"))
        ends(run("show", "x1"), 6, "error: no job [red]x")

    def test_unexpected_exception_prints_one_line(self, service, run, monkeypatch):
        service.on("GET", "/v1/jobs", RuntimeError("boom"))
        ends(run("list"), 1, "error: unexpected RuntimeError: boom; set TRAINYARD_DEBUG=1 for a traceback")
        monkeypatch.setenv("TRAINYARD_DEBUG", "1")
        assert isinstance(run("list").exception, RuntimeError)


class TestProcess:
    """The installed command, in a process of its own."""

    def trainyard(self, *arguments, **options):
        code = "from trainyard.cli import main; main()"
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)

    def test_help_lists_the_exit_codes(self):
        done = self.trainyard("--help")
        assert done.returncode == 0
        assert "4 cannot connect" in " ".join(done.stdout.split())

    def test_version(self):
        assert self.trainyard("--version").stdout == "trainyard 0.1.0\n"

    def test_the_module_is_the_command(self):
        done = subprocess.run([sys.executable, "-m", "trainyard", "--version"], capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("trainyard 0.1.0\n", 0)

    def test_no_command_shows_the_help(self):
        done = self.trainyard()
        assert done.returncode == 2
        assert "Run the service:" in done.stdout

    def test_unreachable_service(self):
        done = self.trainyard("show", "last", env=os.environ | {"TRAINYARD_URL": "http://127.0.0.1:1"})
        assert (done.returncode, done.stdout) == (4, "")
        assert done.stderr.count("\n") == 1

    def test_a_pipe_that_closes_early(self):
        program = "from trainyard.cli.errors import exit_on_error\n"
        program += "with exit_on_error():\n  [print('x' * 1000) for _ in range(1000)]"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
            assert done.stdout.readline() == b"x" * 1000 + b"\n"
            done.stdout.close()
            assert b"BrokenPipe" not in done.stderr.read()


class TestMachineReadableOutput:
    """With --json an error is one object on stderr, in the form of the service's own; the exit code is the same."""

    def ends(self, result, exit_code, **expected):
        assert result.stdout == ""
        body = json.loads(result.stderr)
        assert {key: body["error"].get(key) for key in expected} == expected
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert result.exit_code == exit_code
        return body

    def test_error_of_the_service(self, service, run):
        service.on("GET", "/v1/jobs/x1", UNKNOWN).on("GET", "/v1/jobs", page())
        self.ends(run("show", "x1", "--json"), 6, message="there is no job 'x1'", code="job_not_found")

    def test_unreachable_service(self, service, run):
        service.on("GET", "/v1/jobs", httpx.ConnectError("refused"))
        self.ends(run("list", "--json"), 4, type="connection_error", code="connection_error")

    def test_all_problems_of_a_spec(self, service, run, tmp_path):
        (tmp_path / "bad.yaml").write_text("task: regression\n")
        problems = [{"param": "gpus", "message": "too many"}, {"param": "stepz", "message": "unknown field"}]
        service.on("POST", "/v1/jobs", error(422, "too many", param="gpus", problems=problems))
        assert self.ends(run("submit", "bad.yaml", "--json"), 2, param="gpus")["problems"] == problems

    def test_file_without_a_spec(self, run, tmp_path):
        (tmp_path / "bad.json").write_text("{")
        self.ends(run("submit", "bad.json", "--json"), 2, type="invalid_request_error", code="invalid_spec", param=None)

    def test_wrong_usage(self, service, run):
        self.ends(run("list", "--json", "--nonsense"), 2, type="usage_error")
        self.ends(run("submit", "nowhere.yaml", "--json"), 2, message="there is no file 'nowhere.yaml'")

    def test_unexpected_exception(self, service, run, monkeypatch):
        monkeypatch.setattr("trainyard.cli.cluster.make_client", lambda ctx: 1 / 0)
        self.ends(run("cluster", "--json"), 1, type="client_error", code="client_error")

    def test_failure_of_one_of_several_jobs(self, service, run):
        service.on("GET", "/v1/jobs/b2", job("b2", status="failed")).on("GET", "/v1/jobs/a1", job("a1"))
        service.on("POST", "/v1/jobs/b2/cancel", error(409, "over", "conflict_error", "job_finished"))
        service.on("POST", "/v1/jobs/a1/cancel", job("a1", status="cancelled"))
        done = run("cancel", "b2", "a1", "--json")
        assert json.loads(done.stderr)["error"]["code"] == "job_finished"
        assert (json.loads(done.stdout)["id"], done.exit_code) == ("a1", 7)

    @pytest.mark.parametrize(
        ("arguments", "param"),
        [(("fork", "--step", "999"), "step"), (("download", "--checkpoint", "999"), "checkpoint")],
    )
    def test_missing_checkpoint(self, service, run, arguments, param):
        service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs/a1/checkpoints", page())
        command, *options = arguments
        done = run(command, "a1", *options, "--json")
        self.ends(done, 6, type="not_found_error", code="checkpoint_not_found", param=param)

    def test_json_errors_do_not_affect_the_next_command(self, service, run):
        service.on("GET", "/v1/jobs", httpx.ConnectError("refused"))
        run("list", "--json")
        assert run("list").stderr.startswith("error: cannot connect")


class TestNames:
    def test_note_names_the_job_that_a_name_refers_to(self, service, run):
        service.on("GET", "/v1/jobs/digits", UNKNOWN)
        service.on("GET", "/v1/jobs", page(job("job_new", name="digits"), job("job_old", name="digits")))
        done = run("show", "digits")
        assert done.stdout.splitlines()[0].endswith("job_new")
        assert done.stderr == "note: 'digits' is job_new, the newest job of this name\n"

    def test_only_job_of_its_name_needs_no_note(self, service, run):
        service.on("GET", "/v1/jobs/digits", UNKNOWN)
        service.on("GET", "/v1/jobs", page(job("job_new", name="digits"), job("job_old", name="other")))
        assert run("show", "digits").stderr == ""
