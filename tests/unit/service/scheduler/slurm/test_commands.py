"""Slurm's commands: counting, old releases and untrusted output."""

import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.as_owner import calls as calls_module
from service.as_owner.accounts import Accounts
from service.scheduler.base import SchedulerUnavailableError
from service.scheduler.slurm.commands import NodeReason, SlurmCommands
from service.scheduler.slurm.states import interpret_state


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_every_command_is_counted_with_its_outcome(programs: Path) -> None:
    program(programs, "squeue", "true")
    program(programs, "scancel", "exit 1")
    counted: list[tuple[str, str]] = []
    commands = SlurmCommands(lambda name, outcome: counted.append((name, outcome)))
    commands.squeue()
    with pytest.raises(SchedulerUnavailableError):
        commands.scancel("7", "ty-x")
    with pytest.raises(SchedulerUnavailableError):
        commands.sinfo()
    assert counted == [("squeue", "ok"), ("scancel", "failed"), ("sinfo", "failed")]


@pytest.mark.parametrize(
    "message", ["Kill job error on job id 7: Invalid job id specified", "Job/step already completing or completed"]
)
def test_cancelling_an_ended_job_is_no_failure_of_slurm(programs: Path, message: str) -> None:
    program(programs, "scancel", f"echo 'scancel: error: {message}' >&2; exit 1")
    counted: list[tuple[str, str]] = []
    SlurmCommands(lambda name, outcome: counted.append((name, outcome))).scancel("7", "ty-x")
    assert counted == [("scancel", "ok")]


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("Job is no longer pending execution for job 1", "ok"),
        ("Invalid job id specified for job 1", "ok"),
        ("Invalid node name specified for job 1", "failed"),
    ],
)
def test_nodes_of_a_job_that_has_started_are_not_changed(programs: Path, message: str, outcome: str) -> None:
    program(programs, "scontrol", f"echo \"$@\" > {programs}/arguments; echo '{message}' >&2; exit 1")
    counted: list[tuple[str, str]] = []
    commands = SlurmCommands(lambda name, outcome: counted.append((name, outcome)))
    with nullcontext() if outcome == "ok" else pytest.raises(SchedulerUnavailableError, match=message):
        commands.exclude(["1", "2"], ["node[1-2]", "node4"])
    assert counted == [("scontrol", outcome)]
    assert (programs / "arguments").read_text() == "update jobid=1,2 excnodelist=node[1-2],node4\n"


@pytest.mark.parametrize("query", ["squeue", "sacct", "sinfo"])
def test_an_output_that_is_cut_off_is_no_answer(programs: Path, query: str) -> None:
    program(programs, query, "printf 'a|1|RUNNING\\na|2|RUNN'")
    counted: list[tuple[str, str]] = []
    commands = SlurmCommands(lambda name, outcome: counted.append((name, outcome)))
    call = {"squeue": commands.squeue, "sacct": lambda: commands.sacct(ids=["1"]), "sinfo": commands.sinfo}[query]
    with pytest.raises(SchedulerUnavailableError, match="ends within a line"):
        call()
    assert counted == [(query, "failed")]


def test_an_old_release_is_queried_without_used_gpus(programs: Path) -> None:
    output = "echo 'sinfo: error: Invalid node format specification: GresUsed' >&2; exit 1"
    line = "gpu*|up|1:00|n1|idle|1|all|gpu:2|n/a"
    program(programs, "sinfo", f'case "$*" in *GresUsed*) {output};; *) echo "{line}";; esac')
    commands = SlurmCommands()
    with pytest.raises(SchedulerUnavailableError):
        commands.sinfo()
    assert commands.sinfo().gpus[0].total == 2


def test_nodes_out_of_service_are_listed_with_their_reasons(programs: Path) -> None:
    down = "node1|down*|2026-01-01T12:15:00|Not responding"
    rows = f"{down}\n{down}\nnode2|idle|Unknown|none\nnode3|drained|Unknown|bad\tDIMM | fan"
    program(programs, "sinfo", f"cat <<'END'\n{rows}\nEND")
    first, second = SlurmCommands().node_reasons("node[1-3]")
    assert first == NodeReason("node1 is down: Not responding", datetime(2026, 1, 1, 12, 15, tzinfo=UTC))
    assert second == NodeReason("node3 is drained: bad?DIMM | fan", None)


def test_jobs_of_other_accounts_are_queried_on_request(programs: Path) -> None:
    program(programs, "squeue", f'echo "$*" >> {programs}/calls')
    commands = SlurmCommands()
    commands.squeue()
    commands.squeue(everyone=True)
    own, everyone = (programs / "calls").read_text().splitlines()
    assert "--user=" in own
    assert "--user=" not in everyone


def test_a_forged_line_in_a_job_name_is_ignored(programs: Path) -> None:
    program(programs, "squeue", "printf 'x|9|RUNNING|N/A|N/A|gpu|1|0|n1|None|ty-a\\n'")
    assert SlurmCommands().squeue() == ([], [])


def test_case_26_a_reused_id_is_cancelled_only_with_our_name(programs: Path) -> None:
    """`scancel --name` leaves a job of another name alone; the program here stands for Slurm's own comparison."""
    program(programs, "scancel", f'echo "$*" >> {programs}/calls')
    SlurmCommands().scancel("4711", "ty-main-00ff")
    assert (programs / "calls").read_text() == "--name=ty-main-00ff 4711\n"


def accounting(folder: Path, *records: str) -> None:
    """Install a sacct that prints these records, with its caller's separator for each `|`, and a `|` for each `!`."""
    text = "\n".join(records).replace("|", "${separator}").replace("!", "|")
    parse = 'for word in "$@"; do case "$word" in --delimiter=*) separator="${word#*=}";; esac; done'
    program(folder, "sacct", f"{parse}\ncat <<END\n{text}\nEND")


def test_a_line_break_in_a_folder_forges_no_record(programs: Path) -> None:
    forged = "7|1001|COMPLETED|0:0|0:0|None|n1|/tmp/x\n8!1000!FAILED!1:0!0:0!None!n1!/runs/2!ty-b|ty-a"
    accounting(programs, forged, "9|1000|FAILED|1:0|1:0|None|n1|/runs/2|ty-b")
    assert [row.id for row in SlurmCommands().sacct(ids=["7", "8", "9"]) or []] == ["9"]


def test_records_distinguish_a_user_from_the_controller(programs: Path) -> None:
    accounting(
        programs,
        "7|1000|CANCELLED by 1000|0:0|0:0|None|None assigned|/runs/1|ty-a",
        "8|1000|CANCELLED|0:0|0:0|Unknown|n1|/runs/2|ty-b",
        "9|1000|PREEMPTED|0:15|0:0|2026-01-01T12:15:00|n1|/runs/3|ty-c",
    )
    rows = SlurmCommands().sacct(ids=["7", "8", "9"]) or []
    ends = [interpret_state(row.state) for row in rows]
    assert ends == [("ended", "cancelled"), ("ended", "dropped"), ("ended", "preempted")]
    assert [row.nodes for row in rows] == ["", "n1", "n1"]
    assert [row.start for row in rows] == [None, None, datetime(2026, 1, 1, 12, 15, tzinfo=UTC)]


def test_an_owner_who_delays_scancel_delays_the_tick_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_BRIEF_SECONDS", 0.2)
    owners, over = calls_module.OwnerCalls(Accounts(1000)), threading.Event()
    monkeypatch.setattr(owners, "command", lambda *_: over.wait(30))
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(SchedulerUnavailableError, match="scancel as uid 1001"):
            SlurmCommands(owners=owners).scancel("7", "ty-x", 1001)
    assert time.monotonic() - began < 10
    over.set()


def test_a_cluster_without_accounting_counts_no_failed_command(programs: Path) -> None:
    program(programs, "sacct", "echo 'Slurm accounting storage is disabled' >&2\nexit 1")
    counts: list[tuple[str, str]] = []
    assert SlurmCommands(lambda *count: counts.append(count)).sacct(ids=["7"]) is None
    assert counts == [("sacct", "ok")]
