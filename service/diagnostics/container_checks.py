"""The check of container runtimes: which of them this machine has, and whether it has the selected runtime."""

import shutil
import subprocess
from collections.abc import Mapping

from service.core.settings import Settings
from trainyard.contract.spec.containers import ContainerRuntime
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_PROGRAMS: Mapping[ContainerRuntime, str] = {
    "apptainer": "apptainer",
    "charliecloud": "ch-run",
    "docker": "docker",
    "enroot": "enroot",
    "podman": "podman",
    "pyxis": "srun",
}
_SECONDS = 10.0


def containers(settings: Settings) -> Finding:
    """Whether the selected runtime is installed here, and which others are."""
    installed = [runtime for runtime in _PROGRAMS if _is_installed(runtime)]
    names = ", ".join(installed) or "no container runtime"
    selected = settings.container_runtime
    if selected is None:
        return ok_finding("containers", f"off (TRAINYARD_CONTAINER_RUNTIME); this machine has {names}")
    program = _PROGRAMS[selected]
    if selected == "pyxis" and settings.backend == "local":
        message = "pyxis is a plug-in of Slurm's srun, and the backend is local: no container can start"
        return error_finding("containers", message, "select another TRAINYARD_CONTAINER_RUNTIME")
    if selected not in installed:
        message = f"{selected} (`{program}`) is not here; this machine has {names}"
        if settings.backend == "local":
            return error_finding("containers", message, "install it, or select another TRAINYARD_CONTAINER_RUNTIME")
        return warning_finding("containers", message, f"check on a node: srun -N1 {program} --version")
    if selected == "docker" and settings.backend == "slurm":
        message = "containers of docker are children of its daemon: Slurm's limits of memory and GPUs do not apply"
        return warning_finding("containers", message, "select podman, apptainer, charliecloud, enroot or pyxis")
    return ok_finding("containers", f"{selected} is here; installed: {names}")


def _is_installed(runtime: ContainerRuntime) -> bool:
    program = shutil.which(_PROGRAMS[runtime])
    if program is None or runtime != "pyxis":
        return program is not None
    help_text = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=_SECONDS, check=False
    ).stdout
    # The plug-in adds its options to srun's.
    return "--container-mounts" in help_text
