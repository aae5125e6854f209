"""What sbatch's answer means: accepted, clearly refused, or neither. Pure."""

import re
from datetime import UTC, datetime

from service.scheduler.base import Accepted, Ambiguous, Forecast, Postponed, Rejected, SubmitOutcome

_ID = re.compile(r"\bjob (\d+)\b")
_START = re.compile(r"\bto start at (\S+) using \d+ processors on (?:nodes )?(\S+)(?: in partition (\S+))?")
_SUBMIT_LIMIT = re.compile(r"\b(?:Assoc|QOS)(?:Max|Grp)SubmitJobs?\w*Limit\b")
"""The limits of how many jobs may be queued at once; the line after it says the same of a time limit, which lasts."""
_ACCOUNT = "change resources.account, or resources.partition to one that it may use"
_PARTITION = "change resources.partition; `trainyard cluster` shows what there is"
_TIME = "lower resources.time_limit_minutes; `trainyard cluster` shows the partitions' limits"
_MEMORY = "lower resources.memory_gb_per_gpu"
_NODES = "no node or not enough nodes can ever give that: change gpus, gpus_per_node, gpu_type or memory in resources"
_NO_NODES = "requested node configuration is not available"
_WOULD_WAIT = (
    "where nodes are down or drained, which `trainyard cluster` shows, a job would wait for them; else change gpus, "
    "gpus_per_node, gpu_type or memory in resources"
)
"""Submitted, it waits for nodes that are down; `sbatch --test-only` takes them for nodes that there are not."""
_QOS = "change resources.qos; `trainyard cluster` shows what the accounts may use"
_CONSTRAINT = "change resources.constraint; `sinfo -o %f` shows the features of nodes"
_EXCLUDE = "change resources.exclude; `sinfo -N` shows the names of nodes"
_ASK = "ask an administrator of the cluster"
_REFUSALS = {
    "invalid account or account/partition combination": _ACCOUNT,
    "invalid partition name specified": _PARTITION,
    "invalid qos specification": _QOS,
    "invalid feature specification": _CONSTRAINT,
    "invalid generic resource (gres) specification": "change resources.gpu_type",
    "invalid node name specified": _EXCLUDE,
    "invalid exclude node list": _EXCLUDE,
    "invalid job constraint": _CONSTRAINT,
    "invalid features specification": _CONSTRAINT,
    "invalid qos for job": _QOS,
    "qos not permitted to use this partition": _QOS,
    "requested partition is not available": _PARTITION,
    "invalid --time specification": _TIME,
    "time limit specification required": "set resources.time_limit_minutes",
    "invalid wckey specification": _ASK,
    "invalid time specification": _TIME,
    _NO_NODES: _NODES,
    "requested time limit is invalid": _TIME,
    "requested partition configuration not available now": _PARTITION,
    "memory required by task is not available": _MEMORY,
    "memory specification can not be satisfied": _MEMORY,
    "node count specification invalid": _NODES,
    "more processors requested than permitted": "lower resources.cpus_per_gpu or gpus",
    "job violates accounting/qos policy": "lower what it asks for, or change resources.account or resources.qos",
    "job submission denied by a plugin": _ASK,
    "user's group not permitted to use this partition": _PARTITION,
    "group not permitted to use this partition": _PARTITION,
    "access/permission denied": _ASK,
    "unable to open file": _ASK,
}
"""sbatch's words, in lower case, after which nothing can have been queued, and what to do about each."""


def read_answer(returncode: int, stdout: str, stderr: str) -> SubmitOutcome:
    """An id counts even beside an error: the controller had it."""
    if found := _ID.search(stdout):
        return Accepted(found[1])
    if (full := _full(returncode, stderr)) is not None:
        return Postponed(full)
    if (refusal := _refusal(returncode, stderr)) is not None:
        return Rejected(*refusal)
    return Ambiguous(_unclear(returncode, stderr))


def read_forecast(returncode: int, stderr: str) -> Forecast:
    """What `sbatch --test-only` says."""
    if returncode == 0 and (found := _START.search(stderr)):
        time, nodes, partition = found.groups()
        where = f" on {nodes}" + (f", partition {partition}" if partition else "")
        try:
            start = datetime.fromisoformat(time).replace(tzinfo=UTC)
        except ValueError:
            return Forecast(True, f"Slurm would accept it{where}; it does not say when it would start")
        return Forecast(True, f"Slurm would accept it, and start it{where} at {start:%Y-%m-%d %H:%M:%S}Z", start)
    if (full := _full(returncode, stderr)) is not None:
        return Forecast(None, full)
    if returncode != 0 and _NO_NODES in stderr.lower():
        return Forecast(None, f"Slurm finds no nodes for it among those that are up: {_words(stderr)} ({_WOULD_WAIT})")
    if (refusal := _refusal(returncode, stderr)) is not None:
        return Forecast(False, refusal[0])
    return Forecast(None, _unclear(returncode, stderr))


def _full(returncode: int, stderr: str) -> str | None:
    """That no more jobs may be queued for now; or None."""
    limit = _SUBMIT_LIMIT.search(stderr)
    if returncode == 0 or limit is None:
        return None
    return f"Slurm takes no more jobs of its account or qos until others have ended ({limit[0]})"


def _refusal(returncode: int, stderr: str) -> tuple[str, str] | None:
    """A clear no with the way out, and the way out alone; or None."""
    way_out = next((hint for refusal, hint in _REFUSALS.items() if refusal in stderr.lower()), None)
    if returncode == 0 or way_out is None:
        return None
    return f"Slurm refuses it: {_words(stderr)} ({way_out})", way_out[0].upper() + way_out[1:] + "."


def _unclear(returncode: int, stderr: str) -> str:
    return f"sbatch ended with {returncode}: {_words(stderr) or 'no word'}"


def _words(stderr: str) -> str:
    return "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.splitlines() if line)
