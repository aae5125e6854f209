"""Slurm's reasons for a job's waiting, in plain words with what to do about it. Pure."""

_PLAIN: dict[str, str] = {
    "None": "Slurm has not looked at it yet",
    "Resources": "next in line; waits until enough nodes are free",
    "Priority": "jobs of higher priority come first",
    "Dependency": "waits for another job that it was made to depend on",
    "DependencyNeverSatisfied": "waits for a job that can no longer end as required; cancel it and submit it anew",
    "JobHeldUser": "held by this service's account; `scontrol release` lets it go",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "BeginTime": "its begin time is still to come; after a restart Slurm waits about two minutes by itself",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "its reservation was deleted; cancel it and submit it anew",
    "Licenses": "waits for a licence",
    "PartitionTimeLimit": "asks for more time than the partition allows; lower resources.time_limit_minutes",
    "PartitionNodeLimit": "asks for more nodes than the partition allows; lower gpus or take another partition",
    "PartitionConfig": "asks for more than the partition can ever give (nodes, cores, memory or time)",
    "PartitionDown": "the partition is closed; ask an administrator or take another one",
    "PartitionInactive": "the partition takes no jobs; ask an administrator or take another one",
    "BadConstraints": "no node can ever satisfy what it asks for; change the resources",
    "ReqNodeNotAvail": "a node that it needs is down or reserved; `sinfo -R` says why",
    "NodeDown": "a node that it needs is down; `sinfo -R` says why",
    "AccountNotAllowed": "the account may not use this partition; change resources.account or resources.partition",
    "QOSNotAllowed": "the qos may not be used here; change resources.qos or resources.partition",
    "InvalidAccount": "the account is not valid; change resources.account",
    "InvalidQOS": "the qos is not valid; change resources.qos",
    "JobArrayTaskLimit": "the limit of jobs that run at once is reached",
    "Cleaning": "its former run is still being cleaned up",
    "Prolog": "its nodes are being prepared",
    "BurstBufferResources": "waits for burst-buffer space",
    "FrontEndDown": "no front-end node is available",
    "SystemFailure": "Slurm failed; ask an administrator",
}
_LIMITS = (
    ("QOS", "a limit of its qos is reached; it starts when other jobs of that qos end, or take another qos"),
    ("Assoc", "a limit of the account or user is reached; it starts when others of its jobs end, or ask for more"),
)
_NEVER = "; as it stands it never starts: lower what it asks for"


def explain(reason: str) -> str:
    """The reason in our words, with Slurm's own word, which people search for."""
    name = reason.split(",", 1)[0].strip("() ") or "None"
    plain = _PLAIN.get(name)
    if plain is None:
        plain = next((words for prefix, words in _LIMITS if name.startswith(prefix)), "Slurm gives this reason")
        if name.endswith("PerJobLimit") or "PerJob" in name:
            plain += _NEVER
    return f"{plain} ({name})"
