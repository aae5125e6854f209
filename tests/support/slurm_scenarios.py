"""Scripted ends of jobs in a lab, to be recorded: `python -m tests.support.slurm_scenarios FILE [SCENARIO...]`."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.owners import unix_users
from tests.support.slurm_ends import LOG, RecordedEnd, Recorder, write
from tests.support.slurm_lab import Variant, running_lab
from tests.support.wait import wait_until
from trainyard.contract.layout import write_atomic


def plain_ends(at: Recorder) -> None:
    """Ends without an intervention."""
    limited = at.started("time limit", "sleep 300", "--time=1")
    at.started("licences taken", "sleep 300", "--licenses=tokens:4")
    missing = at.submit("licence missing", "true", "--licenses=tokens:1")
    late = at.submit("deadline", "true", "--licenses=tokens:1", "--time=1", "--deadline=now+70")
    at.observe(at.submit("completed", "true"))
    at.observe(at.submit("failed", "exit 3"))
    at.observe(at.submit("killed by a signal", "kill -9 $$"))
    at.observe(at.submit("output folder missing", "true", "--output=/missing/out"))
    at.observe(at.submit("working folder missing", "true", "--chdir=/missing"))
    at.observe(at.submit("interpreter missing", "exec /missing/python"))
    at.observe(at.submit("interpreter missing under srun", "srun /missing/python"))
    wait_until(lambda: at.lab.run("squeue", "-ho", "%r", "-j", missing.scheduler_id).strip() == "Licenses", 30)
    at.observe(missing, "PENDING")
    for record in (limited, late):
        at.observe(record)
    at.records[:] = [each for each in at.records if each.name != "licences taken"]
    at.lab.cancel_all()


def cancellations(at: Recorder) -> None:
    """scancel by several accounts, of running and pending jobs."""
    cancel: dict[str, Callable[[str], str]] = {
        "owner": lambda number: at.run_as(at.owner, "scancel", number),
        "root": lambda number: at.lab.run("scancel", number),
    }
    if at.accounting == "slurmdbd":
        cancel["operator"] = lambda number: at.run_as(at.operator, "scancel", number)
    for who, call in cancel.items():
        running = at.started(f"scancel by {who}")
        pending = at.submit(f"scancel of a pending job by {who}", "true", "--hold")
        for record in (running, pending):
            call(record.scheduler_id)
            at.observe(record)


def signals(at: Recorder) -> None:
    """Signals instead of a cancellation, to the steps, to all processes, and to the batch script alone."""
    to_all, to_script = ["--full"], ["--batch"]
    for receivers, options in (("steps", list[str]()), ("all processes", to_all), ("batch script", to_script)):
        for signal in ("TERM", "KILL"):
            record = at.started(f"signal {signal} to {receivers}")
            at.run_as(at.owner, "scancel", *options, f"--signal={signal}", record.scheduler_id)
            observe_later(at, record)
    record = at.started("scancel of the batch script")
    at.run_as(at.owner, "scancel", "--batch", record.scheduler_id)
    observe_later(at, record)


def observe_later(at: Recorder, record: RecordedEnd) -> None:
    """Record a job that may have ended or not."""
    with suppress(AssertionError):
        wait_until(lambda: at.state(record) not in ("RUNNING", "COMPLETING"), 15)
    at.observe(record, *(["RUNNING"] if at.state(record) == "RUNNING" else []))
    at.lab.cancel_all()


def preemptions(at: Recorder) -> None:
    """A job of a higher partition takes the nodes, in each mode."""
    for mode in ("REQUEUE", "CANCEL", "SUSPEND,GANG"):
        with at.configured(f"PreemptMode={mode}"):
            record = at.started(f"preempted, {mode}")
            at.lab.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 60")
            at.observe(record, *(["SUSPENDED"] if "SUSPEND" in mode else []))


def site_programs(at: Recorder) -> None:
    """A prolog or an epilog that fails."""
    program = at.lab.root / "fails"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with at.configured(f"Prolog={program}", "PrologFlags=Alloc"):
        at.observe(at.submit("prolog fails", "true"))
    with at.configured(f"Epilog={program}"):
        at.observe(at.submit("epilog fails", "true"))
        wait_for_drain(at)
        at.resume()
        record = at.started("scancel by root, then the epilog fails")
        at.lab.run("scancel", record.scheduler_id)
        wait_for_drain(at)
        at.observe(record)


def wait_for_drain(at: Recorder) -> None:
    wait_until(lambda: any("drain" in state for state in at.node_states()), 30, "a node to be drained")


def nodes(at: Recorder) -> None:
    """Nodes that fail, are set down or are drained while a job runs."""
    record = at.started("node drained", "sleep 300", "--nodelist=node1")
    at.drain("node1", "kernel update")
    at.observe(record, "RUNNING")
    at.lab.run("scancel", record.scheduler_id)
    record.name = "node drained while running"
    at.observe(at.again(record, "node drained, then scancel by root"))
    at.resume()
    record = at.started("node drained, then scancel by the owner", "sleep 300", "--nodelist=node1")
    at.drain("node1", "kernel update")
    at.run_as(at.owner, "scancel", record.scheduler_id)
    at.observe(record)
    at.resume()
    record = at.started("node set down", "sleep 300", "--nodelist=node1")
    at.lab.run("scontrol", "update", "nodename=node1", "state=down", "reason=power supply")
    at.observe(record)
    at.resume()
    record = at.started("node killed", "sleep 300", "--nodelist=node1")
    at.lab.stop_node("node1")
    at.observe(record)
    at.lab.start_node("node1")
    at.wait_for_nodes()
    at.resume()


def mounts(at: Recorder) -> None:
    """A node that does not see the folder of the runs."""
    at.lab.stop_node("node1")
    at.lab.start_node("node1", without=at.runs)
    at.wait_for_nodes()
    at.resume()
    name = "folder of the runs not mounted"
    at.observe(at.submit(name, "true", "--nodelist=node1", f"--output={at.runs}/{name.replace(' ', '-')}/out"))
    at.lab.stop_node("node1")
    at.lab.start_node("node1")
    at.wait_for_nodes()
    at.resume()


def operators(at: Recorder) -> None:
    """What operators do with jobs, and what jobs wait for."""
    record = at.started("requeued by hand")
    at.lab.run("scontrol", "update", f"jobid={record.scheduler_id}", "requeue=1")
    at.lab.run("scontrol", "requeue", record.scheduler_id)
    at.observe(record, "PENDING")
    record = at.started("requeued by hand in held state")
    at.lab.run("scontrol", "update", f"jobid={record.scheduler_id}", "requeue=1")
    at.lab.run("scontrol", "requeuehold", record.scheduler_id)
    at.observe(record, "PENDING")
    record = at.started("suspended by an operator")
    at.lab.run("scontrol", "suspend", record.scheduler_id)
    at.observe(record, "SUSPENDED")
    at.lab.cancel_all()


def credentials(at: Recorder) -> None:
    """munged ends: no command gets a credential."""
    record = at.started("no credentials")
    at.lab.stop_munge()
    at.record_now(record)
    at.lab.start_munge()
    at.lab.cancel_all()


def boot(at: Recorder) -> None:
    """A node that is powered up for a job and never answers."""
    program = at.lab.root / "power"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    power = (f"SuspendProgram={program}", f"ResumeProgram={program}", "ResumeTimeout=12", "SuspendTimeout=5")
    with at.configured(*power, "SuspendTime=600"):
        at.lab.run("scontrol", "update", "nodename=node1", "state=power_down_force")
        at.lab.stop_node("node1")
        wait_until(lambda: "~" in at.lab.run("sinfo", "-hNn", "node1", "-p", "gpu", "-o", "%T"), 60, "it to power down")
        try:
            at.observe(at.submit("node does not boot", "true", "--nodelist=node1"))
        finally:
            at.lab.start_node("node1")


def memory(at: Recorder) -> None:
    """A script that needs more memory than its job has, ended by the kernel, which needs cgroups, and by Slurm."""
    fill = "python3 -c 'import time; full = bytearray(400 << 20); time.sleep(60)'"
    limited = ("--mem=100", f"--output={LOG}")
    in_groups = ("TaskPlugin=task/cgroup", "ProctrackType=proctrack/cgroup")
    cgroups = at.lab.root / "cgroup.conf"
    before = cgroups.read_text() if cgroups.exists() else ""
    cgroups.write_text("CgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n")
    try:
        with at.configured("SelectTypeParameters=CR_Core_Memory", *in_groups):
            at.observe(at.submit("out of memory in a cgroup", fill, *limited))
            at.observe(at.submit("out of memory of a step in a cgroup", f"srun {fill}", *limited))
    finally:
        cgroups.write_text(before)
    measured = ("JobAcctGatherParams=OverMemoryKill", "JobAcctGatherFrequency=task=1")
    with at.configured("SelectTypeParameters=CR_Core_Memory", *measured):
        at.observe(at.submit("out of memory by measurement", f"srun {fill}", *limited))


def removed_partition(at: Recorder) -> None:
    """slurm.conf no longer has the partition of a job that runs and of one that waits."""
    running = at.started("partition removed", "sleep 300", "--partition=minute", "--licenses=tokens:4")
    waiting = at.submit("partition removed before the start", "true", "--partition=minute", "--licenses=tokens:1")
    before = at.lab.conf.read_text()
    write_atomic(at.lab.conf, before.replace("PartitionName=minute", "PartitionName=renamed"))
    at.lab.stop_controller()
    at.lab.start_controller()
    at.wait_for_nodes()
    for record in (running, waiting):
        at.observe(record)
    write_atomic(at.lab.conf, before)
    at.restart()
    at.resume()


def lost_state(at: Recorder) -> None:
    """The controller starts without its state."""
    record = at.started("state of the controller lost")
    if at.accounting == "slurmdbd":
        wait_until(lambda: at.recorded_state(record) == "RUNNING", 60, "its start in the accounting")
    at.lab.stop_controller()
    at.lab.start_controller(clean=True)
    at.wait_for_nodes()
    wait_until(lambda: not at.state(record), 30, "the job to be unknown")
    if at.accounting == "slurmdbd":
        wait_until(lambda: "CANCELLED" in at.recorded_state(record), 60, "its end in the accounting")
    at.observe(record, "")
    at.resume()


def refusal(at: Recorder) -> None:
    """Cancelled jobs while sacct answers with an error."""
    ended = [record for record in at.records if "CANCELLED" in record.outputs.get("squeue", "")]
    at.lab.stop_accounting()
    at.accounting = "refused"
    for record in ended:
        at.observe(at.again(record, record.name))
    at.lab.start_accounting()


OF_USERS = [plain_ends, cancellations, signals, operators]
OF_SITES = [preemptions, site_programs, nodes, mounts, credentials, boot, memory, removed_partition]
"""`refusal` and `lost_state` follow these."""


def record_ends(accounting: bool, names: list[str]) -> tuple[list[RecordedEnd], str]:
    """Run the scenarios in a lab; return the records and Slurm's release."""
    variant = Variant(accounting=accounting, min_job_age=3000, kill_wait=3, grace_seconds=3)
    with unix_users(2) as users, running_lab(variant) as lab:
        at = Recorder(lab, users, "slurmdbd" if accounting else "none")
        at.add_accounts()
        for scenario in (*OF_USERS, *OF_SITES):
            if not names or scenario.__name__ in names:
                print(scenario.__name__, flush=True)
                scenario(at)
        if accounting:
            refusal(at)
            at.accounting = "slurmdbd"
        if not names or "lost_state" in names:
            lost_state(at)
        return at.records, lab.run("sbatch", "--version").split()[1]


def main() -> None:
    file, *names = sys.argv[1:]
    ends, release = record_ends(True, names)
    without = {"cancellations", "signals", "site_programs", "nodes", "preemptions", "lost_state"}
    more, _ = record_ends(False, [name for name in without if not names or name in names] or ["none"])
    write(Path(file), [*ends, *more], release)


if __name__ == "__main__":
    main()
