"""Parsing the output of sbatch: accepted, refused for this request, refused for now, or no answer. Pure functions.

Whatever error the controller names is an answer, after which nothing is queued. Only errors of the communication with
it are none: the controller may have queued the job, and its answer was lost.
"""

import re
from datetime import UTC, datetime

from service.scheduler.base import Accepted, Ambiguous, Forecast, Postponed, Rejected, SubmitOutcome

_ID = re.compile(r"^Submitted batch job (\d+)\b", re.MULTILINE)
"""Wrappers and plug-ins of sites print more lines, which may name other jobs."""
_START = re.compile(r"\bto start at (\S+) using \d+ processors on (?:nodes )?(\S+)(?: in partition (\S+))?")
_ANSWER = re.compile(r"(?:Batch job submission failed|allocation failure): *(.*\S)", re.IGNORECASE)
_NO_ANSWER = re.compile(
    "|".join(
        (
            *("contact slurm controller", "communication .*failure", "message (?:send|receive) failure"),
            *("unexpected message", "insane message length", "zero length message", "message length < 0"),
            *("entire message", "header lengths are longer", "missing socket error", "timed out", "zero bytes"),
            *("broken pipe", "connection (?:refused|reset|aborted)", "no route to host", "network is unreachable"),
            *("interrupted system call", "resource temporarily unavailable", "stream version number"),
            *(
                "memory management error",
                "incompatible versions",
                "authentication",
                "unpack credential",
                "can't find an address",
            ),
        )
    ),
    re.IGNORECASE,
)
"""Errors of the communication with the controller, by name or of the operating system."""
_POLICY_ADVICE = "A policy of the site refuses it: change what it names, or ask an administrator of the cluster."
_POLICY = "unspecified error"
"""The controller's message if a script of the site, such as `job_submit.lua`, refuses; the script's own words are in
lines before."""
_MAX_ERROR = 1000
_SUBMIT_LIMIT = re.compile(r"\b(?:Assoc|QOS)(?:Max|Grp)SubmitJobs?\w*Limit\b")
"""Limits of the number of queued jobs. sbatch prints the same second line for other, lasting limits."""
_ACCOUNT = "Change resources.account, or use a partition that the account may use."
_PARTITION = "Change resources.partition; `trainyard cluster` lists the partitions."
_TIME = "Lower resources.time_limit_minutes; `trainyard cluster` shows the limits of partitions."
_MEMORY = "Lower resources.memory_gb_per_gpu."
_NODES = (
    "Not enough nodes can satisfy this request: change gpus, gpus_per_node, gpu_type, memory or options in resources."
)
_NO_NODES = "requested node configuration is not available"
_WAITING_ADVICE = (
    "If nodes are down or drained (`trainyard cluster`), a job waits for them; otherwise change gpus, gpus_per_node, "
    "gpu_type, memory or options in resources."
)
"""A submitted job waits for nodes that are down; `sbatch --test-only` treats them as if they did not exist."""
_QOS = "Change resources.qos; `trainyard cluster` shows what the accounts may use."
_CONSTRAINT = "Change resources.constraint; `sinfo -o %f` lists the features of nodes."
_NODE_NAMES = "Change resources.exclude or resources.options.nodelist; `sinfo -N` lists the nodes."
_EXTRA = "or ask an administrator (TRAINYARD_SLURM_EXTRA_OPTIONS)"
"""Such an option may be the administrator's."""
_RESERVATION = f"Change resources.options.reservation, {_EXTRA}; `scontrol show reservation` lists the reservations."
_LICENSES = f"Change resources.options.licenses, {_EXTRA}; `scontrol show licenses` lists them."
_PREFER = f"Change resources.options.prefer, {_EXTRA}; `sinfo -o %f` lists the features of nodes."
_GRES = "Change resources.gpu_type or resources.options.gres."
_OPTION = f"Change resources.options, {_EXTRA}."
_ADMINISTRATOR = "Ask an administrator of the cluster."
_TASKS = "Change gpus, gpus_per_node, cpus_per_gpu or options in resources."
_REFUSALS = {
    "invalid account or account/partition combination": _ACCOUNT,
    "invalid partition name specified": _PARTITION,
    "invalid qos specification": _QOS,
    "invalid feature specification": _CONSTRAINT,
    "invalid generic resource (gres) specification": _GRES,
    "invalid node name specified": _NODE_NAMES,
    "invalid exclude node list": _NODE_NAMES,
    "invalid job constraint": _CONSTRAINT,
    "invalid features specification": _CONSTRAINT,
    "invalid qos for job": _QOS,
    "qos not permitted to use this partition": _QOS,
    "requested partition is not available": _PARTITION,
    "invalid --time specification": _TIME,
    "time limit specification required": "Set resources.time_limit_minutes.",
    "invalid wckey specification": f"Change resources.options.wckey, {_EXTRA}.",
    "invalid time specification": _TIME,
    _NO_NODES: _NODES,
    "requested time limit is invalid": _TIME,
    "requested partition configuration not available now": _PARTITION,
    "memory required by task is not available": _MEMORY,
    "memory specification can not be satisfied": _MEMORY,
    "node count specification invalid": _NODES,
    "more processors requested than permitted": "Lower resources.cpus_per_gpu or gpus.",
    "job violates accounting/qos policy": "Reduce the request, or change resources.account or resources.qos.",
    "job submission denied by a plugin": _ADMINISTRATOR,
    "user's group not permitted to use this partition": _PARTITION,
    "group not permitted to use this partition": _PARTITION,
    "access/permission denied": _ADMINISTRATOR,
    "unable to open file": _ADMINISTRATOR,
    "requested reservation is invalid": _RESERVATION,
    "access denied to requested reservation": _RESERVATION,
    "invalid license specification": _LICENSES,
    "invalid preferred feature specification": _PREFER,
    "invalid number of nodes": "resources.options.nodelist must not name more nodes than the job has.",
    "invalid mcs_label specified": _OPTION,
    "requested nodes not in this partition": _NODE_NAMES,
    "no partition specified or system default partition": _PARTITION,
    "multiple partition job request not supported": _PARTITION,
    "job size specification needs to be provided": _TASKS,
    "task distribution specification invalid": _TASKS,
    "task count specification invalid": _TASKS,
    "cpu count specification invalid": _TASKS,
    "more tasks than available processors": _TASKS,
    "more threads per core than": _TASKS,
    "duplicate generic resource (gres) specification": _GRES,
    "invalid gres specification": _GRES,
    "requested gres option unsupported": _GRES,
    "invalid trackable resource": _GRES,
    "job dependency problem": "Change resources.options.dependency.",
    "circular job dependency": "Change resources.options.dependency.",
    "invalid job array specification": _OPTION,
    "job --batch option is invalid": _OPTION,
    "invalid time specified": _OPTION,
    "invalid time-min specification": _OPTION,
    "burst buffer request invalid": _OPTION,
    "burst buffer permission denied": _OPTION,
    "x11 forwarding not available": _OPTION,
    "invalid cluster feature specification": _OPTION,
    "invalid cluster name": _OPTION,
    "not supported on this system": _OPTION,
    # Scripts of the site that sbatch runs before it sends the request.
    "cli_filter plugin terminated with error": _POLICY_ADVICE,
    _POLICY: _POLICY_ADVICE,
    # A request that sbatch itself refuses has not been sent to the controller. Older releases do not know every option.
    "unrecognized option": _OPTION,
    "doesn't allow an argument": _OPTION,
    "requires an argument": _OPTION,
    "invalid --": _OPTION,
    "invalid numeric value": _OPTION,
    "unrecognized --": _OPTION,
}
"""Errors of sbatch, in lower case, after which nothing can have been queued, with the remedy for each."""


def parse_sbatch_output(returncode: int, stdout: str, stderr: str) -> SubmitOutcome:
    """The outcome of a submission. A printed job id counts even if sbatch failed: the controller has the job."""
    if match := _ID.search(stdout):
        return Accepted(match[1])
    if (limit := _submit_limit(returncode, stderr)) is not None:
        return Postponed(limit)
    answer = _ANSWER.search(stderr)
    if answer is not None and _NO_ANSWER.search(answer[1]):
        return Ambiguous(_unknown_outcome_message(returncode, stderr))
    if (refusal := _refusal(returncode, stderr)) is not None:
        return Rejected(*refusal)
    if returncode != 0 and answer is not None and answer[1]:
        return Postponed(f"Slurm refuses the job for now: {_errors(stderr)}")
    return Ambiguous(_unknown_outcome_message(returncode, stderr))


def parse_forecast(returncode: int, stderr: str) -> Forecast:
    """The forecast in the output of `sbatch --test-only`."""
    if returncode == 0 and (match := _START.search(stderr)):
        time, nodes, partition = match.groups()
        where = f"on {nodes}" + (f" in partition {partition}" if partition else "")
        try:
            start = datetime.fromisoformat(time).replace(tzinfo=UTC)
        except ValueError:
            return Forecast(True, f"Slurm would accept the job and start it {where}. It estimates no start time.")
        message = f"Slurm would accept the job and estimates a start at {start:%Y-%m-%d %H:%M:%S} UTC {where}."
        return Forecast(True, message, start)
    if (limit := _submit_limit(returncode, stderr)) is not None:
        return Forecast(None, limit)
    if returncode != 0 and _NO_NODES in stderr.lower():
        return Forecast(
            None, f"Slurm finds no suitable nodes among those that are up: {_errors(stderr)}. {_WAITING_ADVICE}"
        )
    if (refusal := _refusal(returncode, stderr)) is not None:
        return Forecast(False, refusal[0])
    if returncode != 0 and (answer := _ANSWER.search(stderr)) and not _NO_ANSWER.search(answer[1]):
        return Forecast(None, f"Slurm would refuse the job now: {_errors(stderr)}")
    return Forecast(None, _unknown_outcome_message(returncode, stderr))


def _submit_limit(returncode: int, stderr: str) -> str | None:
    """The message if the limit of queued jobs is reached, otherwise None."""
    limit = _SUBMIT_LIMIT.search(stderr)
    if returncode == 0 or limit is None:
        return None
    return f"The limit of queued jobs of the Slurm account or QOS is reached ({limit[0]})."


def _refusal(returncode: int, stderr: str) -> tuple[str, str] | None:
    """The message and the remedy if sbatch refused the job because of its request, otherwise None."""
    remedy = next((hint for refusal, hint in _REFUSALS.items() if refusal in stderr.lower()), None)
    if returncode == 0 or remedy is None:
        return None
    return f"Slurm refused the job: {_errors(stderr)}. {remedy}", remedy


def _unknown_outcome_message(returncode: int, stderr: str) -> str:
    return f"sbatch exited with {returncode}: {_errors(stderr) or 'no output'}"


def _errors(stderr: str) -> str:
    """The lines of sbatch's output in one text, limited in length: the last lines have its own error."""
    text = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.splitlines() if line)
    return text if len(text) <= _MAX_ERROR else f"... {text[-_MAX_ERROR:]}"
