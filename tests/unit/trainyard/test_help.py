"""Every command has a description and a valid example in its help."""

import shlex
from types import SimpleNamespace

import pytest

from tests.unit.trainyard.fake_service import TIME, error, job, page
from trainyard.cli.commands import COMMANDS, load_command
from trainyard.cli.completion import complete_job, complete_status, complete_sweep
from trainyard.cli.errors import EXIT_CODES

SUMMARIES = {name: summary for commands in COMMANDS.values() for name, (_, summary) in commands.items()}
ROOT = {name: load_command(name) for name in SUMMARIES}


def commands(group=ROOT, path=()):
    for name, command in group.items():
        if hasattr(command, "commands"):
            yield from commands(command.commands, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_command_has_a_description_and_an_example(path):
    help_ = ALL[path].help or ""
    assert help_.split("\n")[0].rstrip().endswith((".", ":")) or "\n" in help_, path
    examples = [line for line in help_.splitlines() if line.strip().startswith("Example: trainyard ")]
    assert len(examples) == 1, path
    arguments = shlex.split(examples[0].strip().removeprefix("Example: trainyard ").partition(" > ")[0])
    assert tuple(arguments[: len(path)]) == path
    context = ALL[path].make_context(path[-1], arguments[len(path) :], resilient_parsing=False)
    assert isinstance(context.params, dict)


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_summary_in_the_table_is_the_first_sentence_of_the_help(name):
    assert ROOT[name].get_short_help_str(limit=200) == SUMMARIES[name]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_option_has_a_help_text(path):
    silent = [p.name for p in ALL[path].params if getattr(p, "help", None) in (None, "")]
    assert silent == [], path


@pytest.mark.parametrize("group", [(), ("tokens",), ("webhooks",)], ids=" ".join)
def test_command_summaries_are_not_truncated(run, group):
    assert (
        "..."
        not in run(*group, "--help", env={"COLUMNS": "80"}).stdout.partition("\nCommands:" if group else "\nTrain:")[2]
    )


@pytest.mark.parametrize("path", [path for path in ALL if path not in (("serve",), ("shell",))], ids=" ".join)
def test_each_command_with_output_has_json(path):
    assert any("--json" in p.opts for p in ALL[path].params)


def test_commands_are_grouped_under_headings(run):
    shown = run("--help").stdout
    places = [shown.index(f"\n{heading}:") for heading in ("Train", "Inspect", "Control", "Results", "Run the service")]
    assert places == sorted(places)
    assert shown.count("\n  submit ") == 1


def test_command_summaries_have_no_ellipsis(run):
    shown = run("--help").stdout.partition("Train:")[2]
    assert "..." not in shown


def test_help_has_the_exit_codes(run):
    shown = " ".join(run("--help").stdout.split())
    assert EXIT_CODES in shown


KNOWN = {"JOB", "JOB...", "SPEC", "SWEEP", "PRESET", "ID"}
"""Arguments whose words the service knows."""


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_completion_uses_data_of_the_service(path):
    arguments = [p for p in ALL[path].params if p.param_type_name == "argument" and p.metavar in KNOWN]
    options = [p for p in ALL[path].params if p.name in ("sweep", "status")]
    assert [p.name for p in (*arguments, *options) if p._custom_shell_complete is None] == []


def test_sweeps_and_statuses_are_completed(service):
    sweep = {"id": "swp_1", "name": "rates", "created_by": "ada", "created_at": TIME, "fields": [], "size": 2}
    service.on("GET", "/v1/sweeps", page(sweep))
    offered = [complete_sweep(SimpleNamespace(obj=service.client), typed) for typed in ("swp", "ra", "x")]
    assert [[word for word, _ in some] for some in offered] == [["swp_1"], ["rates"], []]
    assert complete_status("ca") == ["cancelling", "cancelled"]


@pytest.mark.parametrize(("typed", "offered"), [("job_1", ["job_1aaa"]), ("dig", ["digits"]), ("x", [])])
def test_jobs_are_completed_by_id_and_name(service, typed, offered):
    service.on("GET", "/v1/jobs", page(job("job_1aaa", name="digits"), job("job_2bbb", name="other")))
    assert [value for value, _ in complete_job(SimpleNamespace(obj=service.client), typed)] == offered


def test_names_that_a_shell_would_run_are_not_completed(service):
    names = ["$(id)", "`id`", "a;b", "-rf", "a b", "x\n", "a'b", "ünïcode-1.2"]
    service.on("GET", "/v1/jobs", page(*(job(f"job_{n}", name=name) for n, name in enumerate(names))))
    offered = [value for value, _ in complete_job(SimpleNamespace(obj=service.client), "") if "job_" not in value]
    assert offered == ["ünïcode-1.2"]


def test_completion_is_empty_without_a_service(service):
    service.on("GET", "/v1/jobs", error(500, "no"))
    assert complete_job(SimpleNamespace(obj=service.client), "job") == []
