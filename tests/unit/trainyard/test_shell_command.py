"""`trainyard shell` and `exec`: the command lines, where they run, and what is printed of the nodes' records."""

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.unit.trainyard.fake_service import error, job
from trainyard.cli import node_commands, shell
from trainyard.cli.node_commands import node_arguments, passed_environment, reason_for_elsewhere
from trainyard.cli.shell import NodeReport, program_name
from trainyard.contract.wire.job_access import AccessResource, format_end, format_output

SLURM = {
    "job_id": "a1",
    "attempt": 1,
    "scheduler": "slurm",
    "scheduler_id": "17",
    "account": "ada",
    "uid": 4711,
    "folder": "/runs/a1/attempts/1-x",
    "command": ["/usr/bin/env", "-u", "PYTHONPATH", "/opt/python", "-P", "-m", "companion", "/runs/a1/attempts/1-x"],
    "nodes": [{"name": "node1", "ranks": [0, 1]}, {"name": "node2", "ranks": [2, 3]}],
}
LOCAL = {**SLURM, "scheduler": "local", "scheduler_id": "ty-a1", "nodes": [{"name": "host", "ranks": [0, 1]}]}
PROGRAM = "/usr/bin/env -u PYTHONPATH /opt/python -P -m companion /runs/a1/attempts/1-x"
RESOURCES = "--mem=0 --cpu-bind=none --mpi=none --propagate=NONE --export=ALL --chdir=/"


def access(document=SLURM, **changes):
    return AccessResource.model_validate({**document, **changes})


class TestNodeArguments:
    def test_shell_is_a_step_with_a_terminal_on_the_node_of_the_rank(self):
        one = access(nodes=[{"name": "node2", "ranks": [2, 3]}])
        assert " ".join(node_arguments(one, "shell", 3)) == (
            "srun --jobid=17 --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=node2 "
            f"{RESOURCES} --pty --job-name=trainyard-shell --quiet {PROGRAM} shell --rank 3"
        )

    def test_command_is_one_step_on_all_nodes(self):
        arguments = node_arguments(access(), "exec", None, ["nvidia-smi", "-L"], 60.0)
        assert " ".join(arguments) == (
            f"srun --jobid=17 --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 {RESOURCES} --input=none --wait=0 "
            f"--kill-on-bad-exit=0 --job-name=trainyard-exec --quiet {PROGRAM} exec --timeout 60 -- nvidia-smi -L"
        )

    def test_arguments_of_the_command_follow_a_separator_as_they_are(self):
        odd = ["-x", "--rank", "a b", "", "line\nbreak", "--", "$(id)"]
        arguments = node_arguments(access(LOCAL), "exec", 1, odd)
        assert arguments == [*LOCAL["command"], "exec", "--rank", "1", "--", *odd]


def elsewhere(document=SLURM, uid=4711, *, has_srun=True, host="login", readable=True):
    return reason_for_elsewhere(access(document), uid, has_srun=has_srun, host=host, is_readable=lambda path: readable)


class TestReasonForElsewhere:
    def test_job_of_slurm_needs_its_commands_and_the_account_of_the_job(self):
        assert elsewhere() is None
        assert elsewhere(has_srun=False) == (
            "this machine has no `srun`; type the printed line on a login node of the cluster"
        )
        other = elsewhere(uid=os.getuid() + 4712)
        assert other.startswith("the job runs as the Unix account `ada`, and you are `")
        assert other.endswith("type the printed line as `ada`")
        assert elsewhere(uid=0, has_srun=False).endswith(
            "type the printed line on a login node of the cluster as `ada`"
        )

    def test_local_job_needs_the_machine_of_the_service(self):
        assert elsewhere(LOCAL, host="host", has_srun=False) is None
        for reason in (elsewhere(LOCAL, host="laptop"), elsewhere(LOCAL, host="host", readable=False)):
            assert reason == "the job runs on host, on the service's machine; type the printed line there"
        assert elsewhere(LOCAL, host="host", uid=0).endswith("type the printed line as `ada`")


def test_token_and_allocation_of_the_shell_are_not_passed_on():
    environ = {"PATH": "/bin", "TRAINYARD_TOKEN": "x", "SLURM_JOB_ID": "9", "SLURM_CONF": "/c", "LD_PRELOAD": "y"}
    assert passed_environment(environ) == {"PATH": "/bin", "SLURM_CONF": "/c"}


class TestCommands:
    def test_line_is_printed_where_the_command_cannot_run(self, service, run, monkeypatch):
        monkeypatch.setattr(node_commands.shutil, "which", lambda name: None)
        service.on("GET", "/v1/jobs/a1", job("a1", name="$(id)"))
        service.on("POST", "/v1/jobs/a1/access", {**SLURM, "uid": os.getuid()})
        odd = ["echo", "it's", "line\nbreak", "-x", "\x1b[2J"]
        done = run("exec", "a1", "--", *odd)
        assert done.exit_code == 8
        assert "type the printed line on a login node" in done.stderr
        assert shlex.split(done.stdout)[-6:] == ["--", *odd]
        assert json.loads(service.requests[-1].content) == {"kind": "exec", "program": "echo"}

    def test_shell_of_a_job_of_another_account(self, service, run, monkeypatch):
        monkeypatch.setattr(node_commands.shutil, "which", lambda name: "/usr/bin/srun")
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.on("POST", "/v1/jobs/a1/access", {**SLURM, "uid": os.getuid() + 1})
        done = run("shell", "a1", "--rank", "1")
        assert (done.exit_code, done.stdout.split()[:2]) == (8, ["srun", "--jobid=17"])
        assert "the job runs as the Unix account `ada`" in done.stderr
        assert json.loads(service.requests[-1].content) == {"kind": "shell", "rank": 1}

    def test_refusal_of_the_service_is_reported(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        refusal = error(409, "job a1 has status queued", "conflict_error", "job_not_running")
        service.on("POST", "/v1/jobs/a1/access", refusal)
        done = run("shell", "a1")
        assert (done.exit_code, done.stderr) == (7, "error: job a1 has status queued\n")

    @pytest.mark.parametrize("arguments", [("exec", "a1"), ("exec", "a1", "--"), ("shell", "a1", "--rank", "-1")])
    def test_usage_errors_send_nothing(self, service, run, arguments):
        assert (run(*arguments).exit_code, service.requests) == (2, [])

    def test_option_of_the_command_is_no_option_of_ours(self, service, run):
        done = run("exec", "a1", "--", "x", "--json")
        assert done.stderr.startswith("error: ")

    def test_program_that_cannot_be_started_is_an_error(self, service, run, monkeypatch):
        monkeypatch.setattr(shell, "reason_here", lambda access: None)
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.on("POST", "/v1/jobs/a1/access", {**LOCAL, "command": ["/no/such/program"]})
        done = run("exec", "a1", "--", "x")
        assert (done.exit_code, "/no/such/program" in done.stderr) == (1, True)


class TestNodeReport:
    def receive(self, *lines, as_json=False):
        report = NodeReport(as_json=as_json)
        for line in lines:
            report.receive(line)
        return report

    def test_lines_have_the_node_in_front(self, capsys):
        report = self.receive(
            *format_output("node1", "stdout", b"one\ntw"),
            *format_output("node2", "stderr", b"\x1b[2Jbad\n"),
            *format_output("node1", "stdout", b"o\nrest"),
            format_end("node1", 0),
            format_end("node2", 3),
        )
        assert report.close(["node1", "node2"], 0) == 3
        output = capsys.readouterr()
        assert output.out == "node1: one\nnode1: two\nnode1: rest\n"
        assert output.err == "node2: bad\n"

    def test_json_has_an_object_for_each_node(self, capsys):
        lines = [*format_output("node1", "stdout", b"a\n" * 2000), format_end("node1", 0, message="x")]
        assert self.receive(*lines, as_json=True).close(["node1"], 0) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["stdout"], answer["stderr"], answer["exit_code"]) == ("a\n" * 2000, "", 0)

    def test_node_without_an_end_is_a_failure(self, capsys):
        report = self.receive(*format_output("node1", "stdout", b"partial"), b"srun: no\n")
        assert report.close(["node1", "node2"], 0) == 1
        output = capsys.readouterr()
        assert output.out == "node1: partial\n"
        assert "srun: no" in output.err
        assert output.err.count("its job or node has ended") == 2
        assert report.close(["node1"], 143) == 143

    def test_records_fit_into_what_slurm_passes_on_as_a_whole(self):
        lines = [*format_output("n" * 300, "stdout", b"\xff" * 10_000), format_end("n" * 300, 255, message="ü" * 9999)]
        assert max(map(len, lines)) <= 1024

    @pytest.mark.parametrize("line", [b"", b"[]", b"{", b'{"node": "a"}', b'{"exit_code": 999}', b"\xff", b"[" * 9999])
    def test_line_that_is_no_record_is_printed(self, capsys, line):
        self.receive(line)
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("program", "name"), [("/usr/bin/env", "env"), ("a\nb", "a?b"), ("x/", "x/"), ("/" + "n" * 999, "n" * 128)]
)
def test_audit_gets_the_name_of_the_program_alone(program, name):
    assert program_name(program) == name


def test_folder_of_this_machine_is_no_other_machines():
    assert reason_for_elsewhere(
        access(LOCAL), 4711, has_srun=True, host="host", is_readable=lambda path: path == Path("/runs/a1/launch.json")
    )
