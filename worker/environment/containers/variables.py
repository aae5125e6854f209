"""Which environment variables cross the boundary of a container, and which a container runtime itself gets.

Both are allow-lists. A variable of the spec never reaches the runtime, whose own variables change the mounts.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

_RANK = (
    *("TRAINYARD_ATTEMPT", "TRAINYARD_EXECUTION", "TRAINYARD_ATTEMPT_FOLDER", "TRAINYARD_BEAT_SECONDS"),
    *("TRAINYARD_STORE", "TRAINYARD_RANK", "TRAINYARD_RECORD_EXCEPTION"),
    *(
        "TRAINYARD_CHECKPOINT_DIR",
        "TRAINYARD_ARTIFACT_DIR",
        "TRAINYARD_RESUMED",
        "TRAINYARD_AFTER",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_TOKEN",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT",
    ),
    *("WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_APP_URL", "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL"),
    *("no_proxy", "NO_PROXY"),
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_*", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "TORCH_*", "PYTORCH_*", "NCCL_*", "GLOO_*", "CUDA_*"),
    *("*_VISIBLE_DEVICES", "OMP_*", "MKL_*", "SLURM_*", "LANG", "LC_*", "TZ", "PYTHONUNBUFFERED"),
)
"""Variables that the service, the scheduler and torchrun set for a rank, and settings of its libraries."""
_RUNTIME = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "LANG", "LD_LIBRARY_PATH"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TRAINYARD_ATTEMPT"),
    *("DBUS_SESSION_BUS_ADDRESS", "REGISTRY_AUTH_FILE", "ENROOT_*", "CONTAINERS_*", "SLURM_*", "SLURMD_*"),
    *("APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "APPTAINER_CONFIGDIR", "APPTAINER_DOCKER_*"),
    *("CH_IMAGE_STORAGE", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"),
)
"""Variables that runtimes read: where they keep images, and how they reach a registry, a daemon or Slurm."""


def container_variables(environ: Mapping[str, str], own: Collection[str]) -> dict[str, str]:
    """Return the variables of a rank for its container. All others come from the image.

    Args:
        environ: The variables of the rank's process on the node.
        own: Names of the spec's variables and secrets.
    """
    return {name: value for name, value in environ.items() if name in own or _matches(name, _RANK)}


def runtime_variables(environ: Mapping[str, str], own: Collection[str]) -> dict[str, str]:
    """Return the variables for the process of a container runtime."""
    return {name: value for name, value in environ.items() if name not in own and _matches(name, _RUNTIME)}


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
