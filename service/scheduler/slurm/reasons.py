"""Slurm's reasons for a job's waiting, in plain words with what to do about it. Pure."""

_ANEW = "cancel it and submit it anew"
_PLAIN: dict[str, str] = {
    "None": "Slurm has given no reason yet; it plans in rounds",
    "SchedDefer": "Slurm has not looked at it yet; it plans in rounds",
    "Resources": "next in line; waits until enough nodes are free",
    "Priority": "jobs of higher priority come first",
    "Dependency": "waits for another job that it was made to depend on",
    "DependencyNeverSatisfied": f"waits for a job that can no longer end as required; {_ANEW}",
    "JobHeldUser": "held by this service's account; `scontrol release` lets it go",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "JobHoldMaxRequeue": "held after too many restarts by Slurm; ask an administrator",
    "BeginTime": "its begin time is still to come; after a restart Slurm waits about two minutes by itself",
    "DeadLine": f"can no longer end before its deadline; {_ANEW}",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": f"its reservation was deleted; {_ANEW}",
    "Licenses": "waits for a licence that other jobs use",
    "PartitionTimeLimit": "asks for more time than the partition allows; lower resources.time_limit_minutes",
    "PartitionNodeLimit": "asks for more nodes than the partition allows or has up; lower gpus, raise "
    "resources.gpus_per_node or take another partition",
    "PartitionConfig": "asks for more than the partition can ever give (nodes, cores, memory or time)",
    "PartitionDown": "the partition is closed; ask an administrator or take another one",
    "PartitionInactive": "the partition takes no jobs; ask an administrator or take another one",
    "BadConstraints": "no node can ever satisfy what it asks for; change resources (constraint, gpu_type, memory)",
    "ReqNodeNotAvail": "a node that it needs is down or reserved; `sinfo -R` and `scontrol show reservation` say why",
    "NodeDown": "a node that it needs is down; `sinfo -R` says why",
    "NodesUnavailable": "the nodes that it needs are down, drained or kept for jobs of higher priority; "
    "`sinfo -R` says which",
    "TimeLimit": "used up its time limit",
    "AccountNotAllowed": "the account may not use this partition; change resources.account or resources.partition",
    "AccountingPolicy": "a limit of the account is reached; it starts when others of its jobs end, or ask for more",
    "QOSNotAllowed": "the qos may not be used here; change resources.qos or resources.partition",
    "InvalidAccount": "the account is not valid; change resources.account",
    "InvalidQOS": "the qos is not valid; change resources.qos",
    "QOSTimeLimit": "asks for more time than its qos allows; lower resources.time_limit_minutes or change "
    "resources.qos",
    "QOSUsageThreshold": "its qos asks for a larger share than the account has left; wait, or change resources.qos",
    "QOSJobLimit": "the qos runs as many jobs at once as it may; it starts when one of them ends",
    "JobArrayTaskLimit": "the limit of jobs that run at once is reached",
    "MaxMemPerLimit": "asks for more memory than one job may have; lower resources.memory_gb_per_gpu",
    "InactiveLimit": "its session was idle for too long",
    "Cleaning": "its former run is still being cleaned up",
    "Prolog": "its nodes are being prepared",
    "BurstBufferResources": "waits for burst-buffer space",
    "BurstBufferStageIn": "its data are being copied to the burst buffer",
    "BurstBufferOperation": f"a burst-buffer operation failed; ask an administrator, or {_ANEW}",
    "FrontEndDown": "no front-end node is available",
    "FedJobLock": "the clusters of the federation settle which one runs it",
    "JobLaunchFailure": "could not be started, perhaps for a broken file system; ask an administrator",
    "NonZeroExitCode": "ended with an error and is kept by Slurm",
    "RaisedSignal": "was ended by a signal and is kept by Slurm",
    "OutOfMemory": "ran out of memory; ask for more (resources.memory_gb_per_gpu)",
    "SystemFailure": "Slurm failed; ask an administrator",
}
_FAMILIES = (
    ("QOSMin", "asks for less than its qos demands; ask for more or change resources.qos"),
    ("QOS", "a limit of its qos is reached; it starts when other jobs of that qos end, or take another qos"),
    ("MaxJobsPer", "a limit of the account or user is reached; it starts when others of its jobs end"),
    ("Assoc", "a limit of the account or user is reached; it starts when others of its jobs end, or ask for more"),
    ("Reservation", "its reservation cannot be used as it stands; change it or submit without it"),
    ("BurstBuffer", "waits for its burst buffer"),
)
_PER_JOB = (
    ("QOS", "asks for more than its qos allows one job; as it stands it never starts: lower what it asks for"),
    ("Assoc", "asks for more than the account allows one job; as it stands it never starts: lower what it asks for"),
)
_SENTENCES = (("Nodes required for job are DOWN", "NodesUnavailable"),)
"""Reasons that Slurm gives as a sentence, and the name under which we explain them."""


def reason_name(reason: str) -> str:
    """Slurm's word for it, without what follows (`ReqNodeNotAvail, UnavailableNodes:node1`)."""
    for start, name in _SENTENCES:
        if reason.lstrip("(").startswith(start):
            return name
    return reason.split(",", 1)[0].strip("() ") or "None"


def explain(reason: str) -> str:
    """The reason in our words, with Slurm's own, which people search for; an unknown one is kept as it is."""
    name = reason_name(reason)
    told = reason.strip("() ") or "None"
    plain = _PLAIN.get(name)
    if plain is None:
        families = _PER_JOB if _is_per_job(name) else _FAMILIES
        plain = next((words for prefix, words in families if name.startswith(prefix)), "Slurm gives this reason")
    return f"{plain} ({told})"


def _is_per_job(name: str) -> bool:
    return name.endswith(("PerJob", "PerJobLimit", "PerNode", "WallDurationPerJobLimit"))
