"""`trainyard data` and `trainyard plan --data`."""

import json
import signal
import sys

import pytest

from tests.unit.trainyard.fake_service import error, job
from trainyard.cli import data, data_plan
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.data_accounts import DataAccounts, TextPart

ACCOUNT = {
    "section": "data.path",
    "format": "chat",
    "records": 3,
    "examples": 2,
    "tokens": 900,
    "learned_tokens": 30,
    "summary": ["read 3 records: 2 examples of format chat"],
    "shown": [
        {
            "number": 1,
            "texts": [
                {
                    "name": "chosen",
                    "parts": [
                        {"text": "Hi\x1b[2J "},
                        {"text": "", "omitted_tokens": 1200},
                        {"text": "one\n\ntwo", "learned": True},
                    ],
                    "tokens": 900,
                    "learned_tokens": 30,
                }
            ],
        }
    ],
}
ACCOUNTS = {"object": "data_accounts", "data": [ACCOUNT]}


def printed(service, run, *arguments, accounts=ACCOUNTS):
    service.on("GET", "/v1/jobs/01JOBAAAA", job()).on("GET", "/v1/jobs/01JOBAAAA/data", accounts)
    return run("data", "01JOBAAAA", *arguments)


class TestData:
    def test_learned_parts_are_in_brackets_without_a_terminal(self, service, run):
        assert printed(service, run).stdout.splitlines() == [
            "data of data.path",
            "  read 3 records: 2 examples of format chat",
            "  learned text is between [[ and ]]",
            "",
            "--- example 1 of 2, chosen, 30 of 900 tokens learned",
            "Hi\\x1b[2J ",
            "... 1,200 tokens ...",
            "[[one",
            "",
            "two]]",
        ]

    def test_learned_parts_are_coloured_in_a_terminal(self):
        parts = [TextPart(text="Hi "), TextPart(text="one\n\ntwo", learned=True)]
        assert data.rendered(parts, coloured=True) == "Hi \x1b[32;4mone\x1b[0m\n\n\x1b[32;4mtwo\x1b[0m"

    @pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
    def test_colours_can_be_off(self, monkeypatch, name, value):
        monkeypatch.setattr(data, "is_terminal", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert data.uses_colours()
        monkeypatch.setenv(name, value)
        assert not data.uses_colours()

    @pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\u202eabc", "\u200b", "\x9b31m", "\r", "\x7f"])
    def test_what_a_terminal_obeys_is_escaped(self, text):
        assert data.visible(text).isprintable()
        assert data.visible(f"a\n{text}").startswith("a\n")

    def test_json_is_that_of_the_service(self, service, run):
        assert DataAccounts.model_validate_json(printed(service, run, "--json").stdout).data[0].records == 3

    def test_job_without_an_account_is_noted(self, service, run):
        done = printed(service, run, accounts={"data": []})
        assert (done.stdout, "no account of the data yet" in done.stderr) == ("", True)


PLAN = {"spec": {}, "strategy": "single", "strategy_reason": "set", "summary": "fits", "fits": True}


def spec_of(path, **changes):
    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 1, "context": 32}
    data_section = {"source": "jsonl", "path": str(path)}
    return {"task": "causal_lm", "model": model, "data": data_section, "steps": 1, **changes}


@pytest.fixture
def plan(service, run, tmp_path):
    """Plan a spec with --data against the fake service."""

    def call(spec, *arguments):
        service.on("POST", "/v1/plans", {**PLAN, "spec": dump_spec(parse_spec(spec))})
        return run("plan", "-", "--data", *arguments, input=json.dumps(spec))

    return call


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    return path


class TestPlan:
    @pytest.mark.cpu_seconds(12)
    def test_data_is_read_on_this_machine(self, service, plan, file):
        done = plan(spec_of(file))
        assert "read 1 record: 1 example of format completion" in done.stdout
        assert "a[[b\u2400]]" in done.stdout
        assert [request.url.path for request in service.requests] == ["/v1/plans"]
        assert done.exit_code == 0

    def test_service_reads_what_is_not_here(self, service, plan, tmp_path):
        service.on("POST", "/v1/plans/data", ACCOUNTS)
        done = plan(spec_of(tmp_path / "none.jsonl"), "--records", "7", "--timeout", "9")
        assert "since " in done.stderr
        assert "cannot be read on this machine" in done.stderr
        assert "data of data.path" in done.stdout
        assert dict(service.requests[-1].url.params) == {"records": "7", "seconds": "9.0"}

    def test_refused_data_is_a_failure(self, service, plan, tmp_path):
        service.on(
            "POST", "/v1/plans/data", {**ACCOUNTS, "problem": "3 records hold no example", "hint": "Correct them"}
        )
        done = plan(spec_of(tmp_path / "none.jsonl"))
        assert done.exit_code == 1
        assert "a job would be refused: 3 records hold no example" in done.stderr

    def test_json_has_one_object_for_the_plan_and_one_for_the_data(self, service, plan, tmp_path):
        service.on("POST", "/v1/plans/data", ACCOUNTS)
        lines = plan(spec_of(tmp_path / "none.jsonl"), "--json").stdout.splitlines()
        assert [json.loads(line)["object"] for line in lines] == ["plan", "data_accounts"]

    def test_service_that_cannot_read_is_an_error_with_the_remedy(self, service, plan, tmp_path):
        service.on(
            "POST", "/v1/plans/data", error(422, "not read. Install it", "invalid_request_error", "data_not_read")
        )
        done = plan(spec_of(tmp_path / "none.jsonl"))
        assert done.exit_code == 2
        assert "Install it" in done.stderr

    def test_data_without_texts_is_an_error(self, plan, file):
        done = plan(spec_of(file, data={"source": "builtin", "name": "stdlib"}))
        assert done.exit_code == 1
        assert "data has no account" in done.stderr


def problem_of(spec):
    return data_plan.local_problem(dump_spec(parse_spec(spec)))


class TestLocalProblem:
    def test_readable_file_has_none(self, file, tmp_path):
        assert problem_of(spec_of(file)) is None
        assert problem_of(spec_of(tmp_path / "*.jsonl")) is None

    def test_pattern_without_files(self, tmp_path):
        assert "cannot be read on this machine" in problem_of(spec_of(tmp_path / "*.json"))

    def test_missing_package_is_named_with_the_remedy(self, file, monkeypatch):
        monkeypatch.setattr(data_plan, "find_spec", lambda name: None if name == "torch" else True)
        assert problem_of(spec_of(file)) == "this machine lacks torch (pip install 'trainyard[worker,hf,data]')"

    def test_tables_need_pyarrow(self, file, monkeypatch):
        monkeypatch.setattr(data_plan, "find_spec", lambda name: None if name == "pyarrow" else True)
        assert problem_of(spec_of(file)) is None
        spec = spec_of(file, data={"source": "parquet", "path": str(file)})
        assert "pyarrow" in problem_of(spec)

    def test_uploaded_file_is_with_the_service(self, file):
        spec = spec_of(file, data={"source": "file", "id": "file_" + "0" * 26})
        assert problem_of(spec) == "data.id is an uploaded file"

    def test_model_must_be_here(self, file, tmp_path):
        spec = spec_of(file, model={"source": "hf", "path": str(tmp_path / "model")})
        assert "model.path" in problem_of(spec)

    def test_spec_of_another_release_is_for_the_service(self):
        assert data_plan.local_problem({"field": "new"}) == "it is of another release than this command"


class TestProcess:
    """What the process of the data does, by programs that stand for it."""

    @pytest.fixture
    def read(self, monkeypatch, file):
        def call(program):
            real = data_plan.subprocess.Popen
            monkeypatch.setattr(
                data_plan.subprocess,
                "Popen",
                lambda command, **options: real([sys.executable, "-c", program], **options),
            )
            request = data_plan.DataRequest(spec=spec_of(file))
            return data_plan._read_here(request, quiet=True)

        return call

    @pytest.mark.parametrize(
        ("program", "message"),
        [
            ("""print('{"failure": "no torch", "hint": "Install it."}')""", "no torch. Install it."),
            ("raise SystemExit(3)", "the process ended with status 3"),
            ("import os; os.kill(os.getpid(), 9)", "the process was killed"),
            ("print('nonsense')", "the process ended with status 0"),
        ],
    )
    def test_failure_is_an_error(self, read, program, message):
        with pytest.raises(data_plan.DataError, match=message):
            read(program)

    def test_process_that_takes_too_long_is_killed(self, read, monkeypatch):
        monkeypatch.setattr(data_plan, "_START_SECONDS", -59.9)
        with pytest.raises(data_plan.DataError, match="takes too long"):
            read("import time; time.sleep(60)")

    def test_time_begins_with_the_first_record(self, read, monkeypatch):
        monkeypatch.setattr(data_plan, "_GRACE_SECONDS", -59.9)
        with pytest.raises(data_plan.DataError, match="takes too long"):
            read("""import time; print('{"records": 1}', flush=True); time.sleep(60)""")

    def test_interruption_ends_the_process(self, read, monkeypatch):
        started = []
        kill = data_plan.subprocess.Popen.terminate
        monkeypatch.setattr(
            data_plan.subprocess.Popen, "terminate", lambda process: (started.append(process), kill(process))
        )

        def interrupt(lines, *, shows_progress):
            raise KeyboardInterrupt

        monkeypatch.setattr(data_plan, "_updates", interrupt)
        with pytest.raises(KeyboardInterrupt):
            read("import sys, time; sys.stdin.read(); time.sleep(60)")
        assert started[0].returncode == -signal.SIGTERM


def test_interruption_removes_the_progress(monkeypatch, capsys):
    def lines():
        yield b'{"records": 7}'
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(data_plan._updates(lines(), shows_progress=True))
    assert capsys.readouterr().err == "\rreading the data: 7 records\r\x1b[K"
