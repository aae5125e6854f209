"""sacct and sacctmgr hang while jobs are cancelled, some of which the accounting would have to be asked about."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.slurm_lab import Variant, running_lab
from tests.support.slurm_wrappers import install
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

_SECONDS = 15.0
"""Within which a cancelled job ends, in every state."""
_HANG = """
[ -e {hangs} ] || exec $REAL "$@"
case "$*" in *--name=*) touch {searches};; esac
exec sleep 600
"""
_NO_ANSWER = '[ -e {fails} ] && { echo "Socket timed out on send/recv operation" >&2; exit 1; }; exec $REAL "$@"'
_WITHOUT_ANSWER = 12


def cancel(client: Client, job: str) -> float:
    """Cancel a job, and return after how many seconds it has ended."""
    started = time.monotonic()
    client.cancel(job)
    wait_until(lambda: client.job(job).status in TERMINAL, 120, "the cancellation")
    return time.monotonic() - started


def test_a_hanging_accounting_delays_no_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, searches, fails, code = (tmp_path / name for name in ("hangs", "searches", "fails", "code"))
    code.mkdir()
    (code / "train.py").write_text("import time\ntime.sleep(3600)\n")
    with running_lab(Variant(accounting=True, min_job_age=2)) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        for program in ("sacct", "sacctmgr"):
            install(tmp_path / "bin", program, _HANG.format(hangs=hangs, searches=searches), monkeypatch)
        install(tmp_path / "bin", "sbatch", _NO_ANSWER.replace("{fails}", str(fails)), monkeypatch)
        # The other intervals are those of a real service. A search of each submission is due every 20 s.
        often = {"slurm_confirm_absence_seconds": "60"}
        service = ServiceProcess(tmp_path, backend="slurm", accelerator="cpu", **often)
        service.start()
        try:
            with service.client() as client:

                def submit(gpus: int = 1) -> str:
                    resources = {"partition": "gpu", "gpus_per_node": gpus, "exclude": "node2"}
                    spec: dict[str, Any] = {"task": "script", "argv": ["train.py"], "gpus": gpus}
                    return client.submit({"name": "sleeps", **spec, "resources": resources}, code=code).id

                def status(job: str) -> str:
                    return client.job(job).status

                running = submit(2)
                wait_until(lambda: status(running) == "running", 120, "a job to run")
                pending = submit()
                wait_until(lambda: status(pending) == "pending", 60, "a job to wait")
                fails.touch()
                unanswered = [submit() for _ in range(_WITHOUT_ANSWER)]
                wait_until(
                    lambda: all(client.job(job).condition for job in unanswered), 120, "submissions without an answer"
                )
                hangs.touch()
                wait_until(searches.exists, 60, "the searches of submissions to hang")
                seconds = [cancel(client, job) for job in (running, pending, unanswered[0])]
                assert max(seconds) < _SECONDS, seconds
        finally:
            service.stop()
