"""Environment variables of a job: the variable that identifies its attempt, and the variables that a spec may set.

A spec's variables and secrets are set in the ranks alone. Pure functions.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec

ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"
"""Set in every process of an attempt, to the attempt's random id; no other process has this value."""

VARIABLES, SECRETS = "environment.variables", "environment.secrets"

_SCHEDULER = ("SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "SUBMITIT_*")
_GPUS = ("*_VISIBLE_DEVICES",)
_TORCHRUN = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_*", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
)
_OF_THE_SERVICE = ("TRAINYARD_*",)
_OF_THE_ACCOUNT = ("PATH", "HOME", "USER", "LOGNAME", "VIRTUAL_ENV")
_LOADING_CODE = (
    *("LD_*", "DYLD_*", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPLATLIBDIR"),
    *("PYTHONEXECUTABLE", "PYTHONINSPECT", "PYTHONBREAKPOINT", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS"),
)
_OF_PROGRAM = (*_OF_THE_ACCOUNT, *_LOADING_CODE)
"""Variables that the program of a `script` may have: they are set when it starts, and no process of ours has them."""
_RESERVED: Mapping[str, Sequence[str]] = {
    "is reserved for the service": (*_OF_THE_SERVICE, *_OF_THE_ACCOUNT),
    "is reserved for the scheduler, whose options are in `resources`": _SCHEDULER,
    "is set from the GPUs of the allocation, which `gpus` and `resources` request": _GPUS,
    "is set by torchrun for each rank, from `gpus` and `resources`": _TORCHRUN,
    "changes which code runs": _LOADING_CODE,
}
"""Variables that no spec may set, by the reason, except for `_OF_PROGRAM`."""
_OPTIONS: Mapping[str, Sequence[str]] = {
    "is set by the service; give yours another name": _OF_THE_SERVICE,
    "is set by the scheduler; use --partition, --time, --nodes and --gpus": _SCHEDULER,
    "is set to the GPUs of the allocation; use --gpus": _GPUS,
    "is set by the launcher for each process; use --gpus and --nodes": _TORCHRUN,
}
"""What `trainyard run` has instead of the variables that no program may get from it."""

_HARMLESS_NAMES = """
    BLIS_NUM_THREADS GOMP_CPU_AFFINITY KMP_AFFINITY KMP_BLOCKTIME MKL_DYNAMIC MKL_NUM_THREADS NUMEXPR_MAX_THREADS
    NUMEXPR_NUM_THREADS OMP_DYNAMIC OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_STACKSIZE OMP_WAIT_POLICY
    OPENBLAS_NUM_THREADS RAYON_NUM_THREADS TOKENIZERS_PARALLELISM
    HF_DATASETS_OFFLINE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE TRANSFORMERS_VERBOSITY
    CUBLAS_WORKSPACE_CONFIG CUDA_CACHE_DISABLE CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING
    CUDA_MODULE_LOADING NVIDIA_TF32_OVERRIDE
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCH_NCCL_ASYNC_ERROR_HANDLING
    TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_DESYNC_DEBUG
    TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_HIGH_PRIORITY
    TORCH_SHOW_CPP_STACKTRACES
    GLOO_SOCKET_IFNAME
    NCCL_ALGO NCCL_BUFFSIZE NCCL_CHECK_POINTERS NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_DEBUG_SUBSYS
    NCCL_DMABUF_ENABLE NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA
    NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT NCCL_IB_SL NCCL_IB_SPLIT_DATA_ON_QPS
    NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IGNORE_CPU_AFFINITY NCCL_LAUNCH_MODE NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS
    NCCL_MIN_NCHANNELS NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVLS_ENABLE
    NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_NET_CHUNKSIZE NCCL_PROTO NCCL_PXN_DISABLE NCCL_SHM_DISABLE
    NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS
"""
HARMLESS_VARIABLES = (*_HARMLESS_NAMES.split(), "APP_*")
"""Variables that every user may set: numbers, switches and names of devices, and names of the user's own. None is read
as a path, a library, a module or a command; TORCH_LOGS, for example, imports a module."""

_MAX_DESCRIBED = 10
_SECRET_NAME = re.compile(r"[A-Z0-9_]+_(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY|ACCESS_KEY_ID)")
"""Names of secrets that every user may set, because programs read them as values only."""


def forbidden_variables(spec: TrainingSpec) -> list[Problem]:
    """Return a problem for each variable and secret of the spec that no spec may set."""
    return [
        Problem(param=f"{field}.{name}", message=f"{reason}; a spec may not set this variable")
        for field, name in _names(spec)
        if (reason := reserved_reason(name)) and not (field == VARIABLES and _is_for_program(spec, name))
    ]


def option_instead(name: str) -> str | None:
    """Return why a program cannot get a variable, and the option of `trainyard run` instead; None if it can."""
    return next((text for text, patterns in _OPTIONS.items() if matches_any(name, patterns)), None)


def program_variables(spec: TrainingSpec) -> dict[str, str]:
    """Return the variables that the program of a `script` alone gets, when it starts."""
    return {name: value for name, value in spec.environment.variables.items() if _is_for_program(spec, name)}


def _is_for_program(spec: TrainingSpec, name: str) -> bool:
    return spec.task_kind.runs_program and matches_any(name, _OF_PROGRAM)


def reserved_reason(name: str) -> str | None:
    """Return why no spec may set a variable of this name; None if it is allowed."""
    return next((reason for reason, patterns in _RESERVED.items() if matches_any(name, patterns)), None)


def is_of_torchrun(name: str) -> bool:
    """Return whether torchrun sets the variable for each rank."""
    return matches_any(name, _TORCHRUN)


def is_set_for_ranks(name: str) -> bool:
    """Return whether the service, the scheduler or torchrun sets the variable for each rank: nothing replaces it."""
    return matches_any(name, ("TRAINYARD_*", *_SCHEDULER, *_GPUS, *_TORCHRUN))


def ineffective_patterns(allowed: Collection[str]) -> list[str]:
    """Return the allowed names and prefixes that have no effect, because no spec may set such a variable."""
    return [pattern for pattern in allowed if reserved_reason(pattern) is not None]


def restricted_variables(spec: TrainingSpec, allowed: Collection[str] = ()) -> list[str]:
    """Return the fields of the variables and secrets that may make a program load code: they require the code role.

    Args:
        allowed: Further harmless names, and prefixes such as `WANDB_*`, which the administrator permits.
    """
    harmless = (*HARMLESS_VARIABLES, *allowed)
    return [
        f"{field}.{name}"
        for field, name in _names(spec)
        if not matches_any(name, harmless) and not (field == SECRETS and _SECRET_NAME.fullmatch(name))
    ]


NAMES_FOR_EVERYBODY = (
    "names that end in _TOKEN, _SECRET, _PASSWORD, _API_KEY, _ACCESS_KEY or _ACCESS_KEY_ID, names that begin with APP_ "
    "and those in docs/security.md are for everybody, others require the code role"
)
"""The rule of `is_common_secret_name`, for messages."""


def is_common_secret_name(name: str) -> bool:
    """Return whether a user without the code role may name this secret in a spec."""
    return bool(_SECRET_NAME.fullmatch(name)) or matches_any(name, HARMLESS_VARIABLES)


def describe_restricted(fields: Sequence[str], allowed: Collection[str] = ()) -> str:
    """Return a message about variables and secrets that require the code role, with the names that do not.

    Args:
        fields: As `restricted_variables` returns them.
    """
    parts = []
    for field in fields[:_MAX_DESCRIBED]:
        name = field.rpartition(".")[2]
        near = get_close_matches(name, [*HARMLESS_VARIABLES, *allowed], n=1, cutoff=0.8)
        parts.append(f"`{field}`" + (f" (did you mean {near[0]}?)" if near and field.startswith(VARIABLES) else ""))
    more = f" and {len(fields) - _MAX_DESCRIBED} more" if len(fields) > _MAX_DESCRIBED else ""
    rules = []
    if any(field.startswith(VARIABLES) for field in fields):
        rules.append(
            "give variables of your own the prefix APP_, or ask an administrator to add the name to "
            "TRAINYARD_ALLOWED_VARIABLES"
        )
    if any(field.startswith(SECRETS) for field in fields):
        rules.append("store secrets under names that end in _TOKEN, _SECRET, _PASSWORD, _API_KEY or _ACCESS_KEY")
    return (
        f"{', '.join(parts)}{more}: programs may load code by a variable of that name, which requires a token that may "
        f"run code; {'; '.join(rules)}"
    )


def rank_variables(spec: TrainingSpec, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, and secrets by name, that the ranks get in addition to the launcher's environment."""
    given = {**spec.environment.variables, **{name: secrets[name] for name in spec.environment.secrets}}
    return {name: value for name, value in given.items() if reserved_reason(name) is None}


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name matches a shell-style pattern, case-sensitively."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _names(spec: TrainingSpec) -> list[tuple[str, str]]:
    """Return the field and the name of each variable and secret."""
    environment = spec.environment
    return [*((VARIABLES, name) for name in environment.variables), *((SECRETS, name) for name in environment.secrets)]
