"""Slurm's reasons why a job waits, each with its cause and remedy in plain words. Pure functions."""

_RESUBMIT = "Cancel the job and submit it again."
_ADMINISTRATOR = "Ask an administrator of the cluster."
_LATER = "The job starts when other jobs end."
_LATER_OR_LESS = "The job starts when other jobs end, or with smaller requests."
_MOVE = "For other resources: `trainyard pause JOB`, then `trainyard resume JOB --set resources.partition=NAME`."
_REDUCE = "It cannot start as it is: reduce the requested resources."

_REASONS: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not reported a reason yet", ""),
    "SchedDefer": ("Slurm has not scheduled it yet", ""),
    "Resources": ("next to start when enough nodes are free", ""),
    "Priority": ("jobs with higher priority start first", ""),
    "Dependency": ("depends on another job", ""),
    "DependencyNeverSatisfied": ("depends on a job that can no longer end as required", _RESUBMIT),
    "JobHeldUser": ("held by this service's Slurm account", "`scontrol release` releases it."),
    "JobHeldAdmin": ("held by an administrator", "Only an administrator can release it."),
    "JobHoldMaxRequeue": ("held after too many requeues", _ADMINISTRATOR),
    "RequeuedInHeldState": ("requeued and held (scontrol requeuehold)", "`scontrol release` releases it."),
    "BeginTime": ("its begin time is in the future; after a requeue Slurm waits about two minutes", ""),
    "DeadLine": ("cannot end before its deadline", _RESUBMIT),
    "Reservation": ("its reservation has not started", ""),
    "ReservationDeleted": ("its reservation was deleted", _RESUBMIT),
    "Licenses": ("a license is in use by other jobs", ""),
    "PartitionTimeLimit": (
        "the time limit exceeds the limit of the partition",
        f"Lower resources.time_limit_minutes. {_MOVE}",
    ),
    "PartitionNodeLimit": (
        "the partition does not allow or does not have this many nodes",
        f"Lower gpus or raise resources.gpus_per_node. {_MOVE}",
    ),
    "PartitionConfig": (
        "the request exceeds what the partition can provide (nodes, cores, memory or time)",
        f"Reduce the requested resources. {_MOVE}",
    ),
    "PartitionDown": ("the partition is down", _MOVE),
    "PartitionInactive": ("the partition does not start jobs", _MOVE),
    "BadConstraints": ("no node can satisfy the constraints", "Change resources (constraint, gpu_type, memory)."),
    "ReqNodeNotAvail": (
        "a required node is down or reserved",
        f"`sinfo -R` and `scontrol show reservation` show why. {_MOVE}",
    ),
    "NodeDown": ("a required node is down", f"`sinfo -R` shows why. {_MOVE}"),
    "NodesUnavailable": (
        "the required nodes are down, drained or reserved for jobs with higher priority",
        f"`sinfo -R` lists them. {_MOVE}",
    ),
    "TimeLimit": ("its time limit is used up", ""),
    "AccountNotAllowed": ("the account may not use this partition", "Change resources.account or resources.partition."),
    "AccountingPolicy": ("a limit of the account is reached", _LATER_OR_LESS),
    "QOSNotAllowed": ("the QOS may not be used here", "Change resources.qos or resources.partition."),
    "InvalidAccount": ("the account is not valid", "Change resources.account."),
    "InvalidQOS": ("the QOS is not valid", "Change resources.qos."),
    "QOSTimeLimit": (
        "the time limit exceeds the limit of the QOS",
        "Lower resources.time_limit_minutes or change resources.qos.",
    ),
    "QOSUsageThreshold": (
        "the QOS requires a larger remaining share than the account has",
        "Wait, or change resources.qos.",
    ),
    "QOSJobLimit": ("the QOS runs its maximum number of jobs", _LATER),
    "JobArrayTaskLimit": ("the limit of jobs that run at once is reached", _LATER),
    "MaxMemPerLimit": ("the request exceeds the memory limit per job", "Lower resources.memory_gb_per_gpu."),
    "InactiveLimit": ("its session was inactive for too long", ""),
    "Cleaning": ("Slurm is cleaning up its previous run", ""),
    "Prolog": ("its nodes are being prepared", ""),
    "BurstBufferResources": ("not enough burst-buffer space", ""),
    "BurstBufferStageIn": ("its data is being copied to the burst buffer", ""),
    "BurstBufferOperation": ("a burst-buffer operation failed", f"{_ADMINISTRATOR} Or: {_RESUBMIT}"),
    "FrontEndDown": ("no front-end node is available", ""),
    "FedJobLock": ("the clusters of the federation are choosing one to run it", ""),
    "JobLaunchFailure": ("the start failed, possibly because of a file system error", _ADMINISTRATOR),
    "NonZeroExitCode": ("ended with an error and is held by Slurm", ""),
    "RaisedSignal": ("ended by a signal and is held by Slurm", ""),
    "OutOfMemory": ("out of memory", "Raise resources.memory_gb_per_gpu."),
    "SystemFailure": ("Slurm failed", _ADMINISTRATOR),
}
_PREFIXES = (
    ("QOSMin", ("the request is below the minimum of the QOS", "Request more or change resources.qos.")),
    ("QOS", ("a limit of the QOS is reached", f"{_LATER} Or: change resources.qos.")),
    ("MaxJobsPer", ("a limit of the account or user is reached", _LATER)),
    ("Assoc", ("a limit of the account or user is reached", _LATER_OR_LESS)),
    ("Reservation", ("its reservation cannot be used", "Change the reservation or submit without it.")),
    ("BurstBuffer", ("waiting for its burst buffer", "")),
)
_PER_JOB_PREFIXES = (
    ("QOS", ("the request exceeds what the QOS allows for one job", _REDUCE)),
    ("Assoc", ("the request exceeds what the account allows for one job", _REDUCE)),
)
_SENTENCES = (
    ("Nodes required for job are DOWN", "NodesUnavailable"),
    ("job requeued in held state", "RequeuedInHeldState"),
)
"""Reasons that Slurm prints as a sentence, and their key in `_REASONS`."""


def reason_name(reason: str) -> str:
    """Slurm's name of the reason, without details (`ReqNodeNotAvail, UnavailableNodes:node1`)."""
    for start, name in _SENTENCES:
        if reason.lstrip("(").startswith(start):
            return name
    return reason.split(",", 1)[0].strip("() ") or "None"


def explain(reason: str) -> str:
    """The cause, followed by Slurm's own words in parentheses (for searching), and the remedy if there is one."""
    name = reason_name(reason)
    per_job = name.endswith(("PerJob", "PerJobLimit", "PerNode", "WallDurationPerJobLimit"))
    prefixes = _PER_JOB_PREFIXES if per_job else _PREFIXES
    by_prefix = next((entry for prefix, entry in prefixes if name.startswith(prefix)), ("Slurm's reason", ""))
    cause, remedy = _REASONS.get(name, by_prefix)
    return f"{cause} ({reason.strip('() ') or 'None'}). {remedy}".rstrip()
