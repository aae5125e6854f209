"""The data of a spec is read before its submission: accounts, problems, and failures with a remedy."""

import io
import json
import os
import signal
import sys

import pytest

from tests.support.chat_templates import tokenizer_for
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.data_accounts import DataRequest, DataUpdate
from worker.data.chat_template import ChatTemplate
from worker.rank import data_plan

GOOD = {"prompt": "a", "completion": "b"}


def write(path, *records):
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
    return str(path)


def request(path, records=1000, **changes):
    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 1, "context": 32}
    data = {"source": "jsonl", "path": path, **changes.pop("data", {})}
    spec = {"task": "causal_lm", "model": model, "data": data, "steps": 1, **changes}
    return DataRequest(spec=dump_spec(parse_spec(spec)), records=records)


def update(path, **changes):
    return data_plan.account_for(request(path, **changes), lambda update: None)


def test_accounts_are_those_of_a_run(tmp_path):
    result = update(write(tmp_path / "a.jsonl", GOOD, GOOD)).result
    assert (result.data[0].examples, result.problem) == (2, None)


class TestBadRecords:
    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            ({}, "2 records of data.path hold no example, which data.on_bad_line refuses"),
            ({"on_bad_line": "skip"}, None),
            ({"on_bad_line": "skip", "max_bad_lines": 1}, "hold no example, more than data.max_bad_lines, which is 1"),
        ],
    )
    def test_problem_is_that_of_a_run(self, tmp_path, data, problem):
        result = update(write(tmp_path / "a.jsonl", GOOD, "no", "no"), data=data).result
        assert result.data[0].bad_records == 2
        assert problem is None if result.problem is None else problem in result.problem
        assert (result.hint is None) == (problem is None)

    def test_remedy_is_that_of_the_most_frequent_reason(self, tmp_path):
        weighted = {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}
        weighted["completion"][0]["train_detail"] = [{}]
        result = update(write(tmp_path / "a.jsonl", GOOD, "no", weighted, weighted)).result
        assert result.hint == "Remove the field, or that line. To leave them out, set data.on_bad_line: skip."

    def test_one_record_is_no_plural(self, tmp_path):
        problem = update(write(tmp_path / "a.jsonl", GOOD, "no")).result.problem
        assert problem.startswith("1 record of data.path holds no example")

    def test_no_example_is_a_problem_with_the_account(self, tmp_path):
        result = update(write(tmp_path / "a.jsonl", "no", "no"), data={"format": "completion"}).result
        assert result.data[0].bad_records == 2
        assert "holds no example" in result.problem

    def test_format_that_no_record_has_is_a_problem(self, tmp_path):
        result = update(write(tmp_path / "a.jsonl", *['{"x": 1}'] * 3)).result
        assert (result.data, "line 1" in result.problem) == ([], True)

    def test_problem_of_a_limited_reading_states_that(self, tmp_path):
        long = {"prompt": "a" * 99, "completion": "b"}
        result = update(write(tmp_path / "a.jsonl", long, long, GOOD), records=2).result
        assert result.problem.startswith("with the records that were read: ")


@pytest.mark.parametrize("content", [b"\x7fELF\x00\x01" * 999, b"\xff\xfe" * 99, b"", b"\n" * 5])
def test_what_is_no_text_is_a_problem(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert update(str(tmp_path / "a.jsonl")).result.problem


def test_missing_file_is_a_problem_with_a_hint(tmp_path):
    result = update(str(tmp_path / "none.jsonl")).result
    assert "cannot be read" in result.problem
    assert result.hint


def test_file_that_changes_while_it_is_read_is_a_problem(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", *[GOOD] * 9)
    monkeypatch.setattr(
        "worker.data.read_limit.ReadLimit.is_over", lambda limit: write(tmp_path / "a.jsonl", GOOD) is None
    )
    result = update(path).result
    assert "changed while it was read" in result.problem


def test_data_without_texts_is_a_failure(tmp_path):
    builtin = {"data": {"source": "builtin", "name": "stdlib"}}
    spec = request(write(tmp_path / "a.jsonl", GOOD)).spec | builtin
    answer = data_plan.account_for(DataRequest(spec=spec), lambda update: None)
    assert (answer.result, answer.failure) == (None, "data of source `builtin` has no account")


def test_uploaded_file_is_named_by_its_id(tmp_path):
    file_id = "file_" + "0" * 26
    given = request(write(tmp_path / "a.jsonl", GOOD))
    data = {"source": "file", "id": file_id, "digest": "sha256:" + "1" * 64}
    answer = data_plan.account_for(
        DataRequest(spec=given.spec | {"data": data}, runs=str(tmp_path)), lambda update: None
    )
    assert file_id in answer.result.problem
    assert str(tmp_path) not in answer.result.problem


class TestProcess:
    @pytest.fixture
    def main(self, monkeypatch, tmp_path):
        """Run the program in this process, and return its exit status and its updates."""

        def call(text):
            output = tmp_path / "output"
            saved = [os.dup(number) for number in (0, 1, 2)]
            handle = os.open(output, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            monkeypatch.setattr(data_plan, "die_with_parent", lambda parent: None)
            handlers = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGTERM)}
            os.dup2(handle, 1)
            try:
                status = data_plan.main()
            finally:
                for number, descriptor in enumerate(saved):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            return status, [DataUpdate.model_validate_json(line) for line in output.read_text().splitlines()]

        return call

    def test_last_line_is_the_result(self, main, tmp_path):
        status, updates = main(request(write(tmp_path / "a.jsonl", GOOD)).model_dump_json())
        assert (status, updates[-1].result.data[0].examples) == (0, 1)

    def test_invalid_request_is_a_failure(self, main):
        status, updates = main("{}")
        assert status == 1
        assert "ValidationError" in updates[-1].failure

    def test_time_limit_is_a_failure_with_a_hint(self, main, tmp_path, monkeypatch):
        monkeypatch.setattr(data_plan, "_START_SECONDS", -0.99)
        monkeypatch.setattr(data_plan, "account_for", lambda request, report: signal.pause())
        given = request(write(tmp_path / "a.jsonl", GOOD)).model_copy(update={"seconds": 1.0})
        status, updates = main(given.model_dump_json())
        assert (status, updates[-1].failure) == (1, "the data was not read within 1 seconds")
        assert "--records" in updates[-1].hint

    def test_chat_template_without_an_end_is_named(self, main, tmp_path, monkeypatch):
        monkeypatch.setattr(data_plan, "_START_SECONDS", -0.2)
        loop = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
        tokenizer = tokenizer_for("")
        tokenizer.chat_template = loop + "{% endfor %}"
        message = [{"role": "user", "content": "a"}]
        monkeypatch.setattr(data_plan, "account_for", lambda *_: ChatTemplate(tokenizer).render(message))
        given = request(write(tmp_path / "a.jsonl", GOOD)).model_copy(update={"seconds": 1.0})
        status, (update,) = main(given.model_dump_json())
        assert (status, update.failure) == (
            1,
            "the model's chat template did not finish one conversation within 1 seconds",
        )
        assert "chat_template.jinja" in update.hint

    def test_handler_of_errors_does_not_catch_the_limit(self, main, tmp_path, monkeypatch):
        def render(request, report):
            try:
                signal.pause()
            except Exception:  # as around chat templates
                return DataUpdate()

        monkeypatch.setattr(data_plan, "_START_SECONDS", -0.99)
        monkeypatch.setattr(data_plan, "account_for", render)
        given = request(write(tmp_path / "a.jsonl", GOOD)).model_copy(update={"seconds": 1.0})
        assert main(given.model_dump_json())[0] == 1

    @pytest.mark.parametrize("error", [MemoryError(), ImportError("No module named 'transformers'")])
    def test_missing_memory_or_package_has_a_hint(self, main, tmp_path, monkeypatch, error):
        def fail(request, report):
            raise error

        monkeypatch.setattr(data_plan, "account_for", fail)
        status, updates = main(request(write(tmp_path / "a.jsonl", GOOD)).model_dump_json())
        assert status == 1
        assert updates[-1].hint
