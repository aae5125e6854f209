"""Ends that a real Slurm showed, through the parsers and the verdict. `tests.support.slurm_scenarios` records them."""

from pathlib import Path
from typing import Any

import pytest

from service.reconciler.decide import decide
from service.reconciler.evidence import verdict, with_memory_error
from service.reconciler.run_dir import memory_error_in
from service.scheduler.base import Observation, SchedulerUnavailableError
from tests.support.slurm_ends import RecordedEnd, ReplayedCommands, load, scheduler_with
from tests.unit.service.reconciler.test_decide import snapshot

ENDS = load(Path(__file__).with_name("recorded_ends.json"))
PREEMPTED = ("site", "preempted (Slurm: PREEMPTED)")
NOT_LAUNCHED = "Slurm could not launch the job on its node (Slurm: FAILED, exit code 0:53)"
UNEXPLAINED = "processes ended without an exit record"
VERDICTS = {
    "time limit": ("job", "time limit reached (Slurm: TIMEOUT)"),
    "deadline": ("job", "time limit reached (Slurm: DEADLINE)"),
    "completed": ("unknown", f"{UNEXPLAINED} (Slurm: COMPLETED)"),
    "failed": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, NonZeroExitCode)"),
    "killed by a signal": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, exit code 0:9)"),
    "output folder missing": ("site", NOT_LAUNCHED),
    "working folder missing": ("unknown", f"{UNEXPLAINED} (Slurm: COMPLETED)"),
    "interpreter missing": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, NonZeroExitCode)"),
    "interpreter missing under srun": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, NonZeroExitCode)"),
    "scancel by owner": ("user", "cancelled by ada with `scancel`"),
    "scancel of a pending job by owner": ("user", "cancelled by ada with `scancel`"),
    "scancel by operator": ("user", "cancelled by olivia with `scancel`"),
    "scancel of a pending job by operator": ("user", "cancelled by olivia with `scancel`"),
    "scancel by root": ("user", "cancelled by an administrator (root) with `scancel`"),
    "scancel of a pending job by root": ("user", "cancelled by an administrator (root) with `scancel`"),
    "signal KILL to steps": ("user", "cancelled by ada with `scancel`"),
    "signal KILL to all processes": ("user", "cancelled by ada with `scancel`"),
    "signal TERM to all processes": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, exit code 0:15)"),
    "signal TERM to batch script": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, exit code 0:15)"),
    "signal KILL to batch script": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, exit code 0:9)"),
    "scancel of the batch script": ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, exit code 0:9)"),
    "preempted, REQUEUE": PREEMPTED,
    "preempted, CANCEL": PREEMPTED,
    "prolog fails": ("site", "the prolog of the site failed (Slurm: "),
    "epilog fails": ("unknown", f"{UNEXPLAINED} (Slurm: COMPLETED)"),
    "scancel by root, then the epilog fails": ("user", "cancelled by an administrator (root) with `scancel`"),
    "node drained, then scancel by root": ("site", "its node was taken out of service (Slurm: CANCELLED by 0"),
    "node drained, then scancel by the owner": ("user", "cancelled by ada with `scancel`"),
    "node set down": ("site", "node failure (Slurm: NODE_FAIL"),
    "node killed": ("site", "node failure (Slurm: NODE_FAIL; node1 is down: Not responding)"),
    "node does not boot": ("site", "node failure (Slurm: NODE_FAIL; node1 is down: ResumeTimeout reached)"),
    "folder of the runs not mounted": ("site", NOT_LAUNCHED),
    "out of memory in a cgroup": ("job", "out of memory (Slurm: OUT_OF_MEMORY)"),
    "out of memory of a step in a cgroup": ("job", "out of memory (Slurm: FAILED, NonZeroExitCode; "),
    "out of memory by measurement": ("job", "out of memory (Slurm: FAILED, NonZeroExitCode; slurmstepd-node1: error: "),
    "partition removed": ("site", "node failure (Slurm: NODE_FAIL"),
    "partition removed before the start": ("site", "ended by Slurm before it started (Slurm: NODE_FAIL"),
    "state of the controller lost": (
        "site",
        "removed by Slurm's controller, not by a user (Slurm: CANCELLED by slurmctld",
    ),
}
SIGNALLED = ("unknown", f"{UNEXPLAINED} (Slurm: FAILED, JobLaunchFailure)")
BY_UNKNOWN = ("unknown", "cancelled in Slurm by an unknown user (Slurm: CANCELLED)")
LEFT_SERVICE = ("site", "its node was taken out of service (Slurm: CANCELLED; node1 is drained: kernel update)")
WITHOUT_ACCOUNTING = {
    "signal TERM to all processes": SIGNALLED,
    "signal TERM to batch script": SIGNALLED,
    "signal KILL to batch script": SIGNALLED,
    "scancel of the batch script": SIGNALLED,
    "prolog fails": VERDICTS["prolog fails"],
    "node drained, then scancel by root": LEFT_SERVICE,
    "node drained, then scancel by the owner": LEFT_SERVICE,
}
"""Where nobody knows who cancelled a job; the others of `VERDICTS` that are cancelled are `BY_UNKNOWN`."""
REFUSED = {"prolog fails": ("site", "cancelled in Slurm before its worker started (Slurm: CANCELLED)")}
"""Observed when the nodes were back in service."""
LIVE = {
    "licence missing": ("pending", "a license is in use by other jobs (Licenses)"),
    "requeued by hand": ("pending", "(BeginTime)"),
    "requeued by hand in held state": ("pending", "`scontrol release`"),
    "suspended by an operator": ("running", "Suspended in Slurm by an operator or by gang scheduling."),
    "preempted, SUSPEND,GANG": ("running", "Suspended in Slurm by an operator or by gang scheduling."),
    "signal TERM to steps": ("running", ""),
    "node drained while running": ("running", ""),
}


def replay(end: RecordedEnd, monkeypatch: pytest.MonkeyPatch) -> Observation:
    """Return what the service observes, after the longest wait for evidence."""
    now = [0.0]
    monkeypatch.setattr("service.scheduler.slurm.ends.time.monotonic", lambda: now[0])
    monkeypatch.setattr("service.scheduler.slurm.accounting.pwd.getpwuid", end.account)
    scheduler = scheduler_with(ReplayedCommands.of(end), Path(end.folder).parent)
    observed: Any = scheduler.observe([end.job])
    if not observed:
        assert end.accounting == "refused"
        now[0] = 30.0
        observed = scheduler.observe([end.job])
    return observed[end.tag]


def expected_verdict(end: RecordedEnd, observation: Observation) -> tuple[str, str]:
    if end.accounting == "slurmdbd":
        return VERDICTS[end.name]
    if end.accounting == "refused":
        return REFUSED.get(end.name, BY_UNKNOWN)
    return WITHOUT_ACCOUNTING.get(end.name, BY_UNKNOWN if observation.end_state == "cancelled" else VERDICTS[end.name])


@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.name}, {end.accounting}")
def test_recorded_end_has_its_true_cause(end: RecordedEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    if end.name == "no credentials":
        with pytest.raises(SchedulerUnavailableError, match="Munge encode failed"):
            replay(end, monkeypatch)
        return
    observation = replay(end, monkeypatch)
    if end.name in LIVE:
        state, message = LIVE[end.name]
        assert observation.state == state
        assert message in observation.message
        return
    if observation.state == "absent":
        assert (end.name, end.accounting) == ("state of the controller lost", "none")
        return
    observation = with_memory_error(observation, memory_error_in(end.log))
    evidence = snapshot(observation=observation, claimed=end.started, retries_left=0)
    by, cause = expected_verdict(end, observation)
    judged, decision = verdict(evidence), decide(evidence)
    assert judged.by == by
    assert judged.cause.startswith(cause)
    assert decision.status == {"user": "cancelled", "site": "queued", "unknown": "queued"}.get(by, decision.status)


def test_every_expected_end_was_recorded() -> None:
    assert {end.name for end in ENDS} == {*VERDICTS, *LIVE, "no credentials"}
    assert {end.accounting for end in ENDS} == {"slurmdbd", "none", "refused"}
