"""What sbatch's answer means: accepted, clearly refused, or neither. Pure."""

import re

from service.scheduler.base import Accepted, Ambiguous, Rejected, SubmitOutcome

_ID = re.compile(r"\bjob (\d+)\b")
_ACCOUNT = "change resources.account, or resources.partition to one that it may use"
_PARTITION = "change resources.partition; `trainyard cluster` shows what there is"
_TIME = "lower resources.time_limit_minutes; `trainyard cluster` shows the partitions' limits"
_MEMORY = "lower resources.memory_gb_per_gpu"
_NODES = "no node or not enough nodes can ever give that: change gpus, gpus_per_node, gpu_type or memory in resources"
_ASK = "ask an administrator of the cluster"
_REFUSALS = {
    "invalid account or account/partition combination": _ACCOUNT,
    "invalid partition name specified": _PARTITION,
    "invalid qos specification": "change resources.qos",
    "invalid feature specification": "change resources.constraint",
    "invalid generic resource (gres) specification": "change resources.gpu_type",
    "invalid node name specified": "change resources.exclude",
    "invalid wckey specification": _ASK,
    "invalid job constraint": "change resources.constraint",
    "invalid time specification": _TIME,
    "requested node configuration is not available": _NODES,
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
    words = " ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.splitlines() if line)
    way_out = next((hint for refusal, hint in _REFUSALS.items() if refusal in stderr.lower()), None)
    if returncode != 0 and way_out is not None:
        return Rejected(f"Slurm refuses it: {words} ({way_out})")
    return Ambiguous(f"sbatch ended with {returncode}: {words or 'no word'}")
