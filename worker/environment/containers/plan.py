"""The start of a node's ranks in their container: the launcher decides it once, and each rank reads it."""

import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec.containers import Container, ContainerRuntime, Mount, is_image_path
from trainyard.contract.spec.environment import program_variables
from trainyard.contract.wire.launch import LaunchDocument
from worker.environment.containers.mounts import (
    container_mounts,
    image_argument,
    package_mounts,
    prerequisite_mounts,
    upload_mounts,
)
from worker.environment.containers.rank_process import PYTHON
from worker.environment.containers.runtimes import RUNTIMES, ContainerRun
from worker.environment.containers.variables import runtime_variables
from worker.environment.prepare import EnvironmentRejectedError
from worker.environment.rank_command import RankCommand

_RANK_PROCESS = "worker.environment.containers.rank_process"
_INIT_PROCESS = "worker.environment.containers.init_process"
_PODMAN_PROCESSES = 32768
"""The process limit that podman sets for itself; without CAP_SYS_RESOURCE no container gets a higher limit."""
_FEATURE_SECONDS = 10.0


@dataclass(frozen=True)
class ContainerPlan:
    """The data with which a rank of the node starts its container."""

    argv: tuple[str, ...]
    """The command line of the runtime."""
    runtime_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the runtime's process gets in addition to its allow-list."""
    rank_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the rank gets in addition to its allow-list."""
    names: tuple[str, ...] = ()
    """Names of the spec's variables and secrets, except for those that are set when the program starts."""
    runtime: ContainerRuntime | None = None
    run: ContainerRun | None = None
    """The source of `argv`, for another container beside the rank's."""


@dataclass(frozen=True)
class ContainerEnvironment:
    """Ranks in a container."""

    plan: Path
    """The file with the plan of the node."""

    def command(self, arguments: Sequence[str], variables: Mapping[str, str], folder: Path) -> RankCommand:
        """Return the command that starts the container and waits for it. See `RankEnvironment`."""
        # The user's folder may contain modules of our names.
        argv = (sys.executable, "-P", "-m", _RANK_PROCESS, str(self.plan), *arguments)
        return RankCommand(argv, {**variables})


def write_plan(
    layout: AttemptLayout, launch: LaunchDocument, node: int, changes: Mapping[str, str], environ: Mapping[str, str]
) -> Path:
    """Write the plan of a node, and the files that its containers need, and return the plan's path.

    Args:
        changes: The variables that the preparation of the node set. The runtime may come from a module.
        environ: The environment of the launcher.

    Raises:
        EnvironmentRejectedError: The container cannot start on this node.
    """
    container = launch.spec.environment.container
    assert container is not None
    layout.container.mkdir(exist_ok=True)
    init = layout.container / f"init-{node}.py"
    shutil.copyfile(_source(_INIT_PROCESS), init)
    scripted = launch.spec.task_kind.runs_program
    rank_variables = {"PYTHONPATH": str(layout.packages)}
    if not scripted:
        rank_variables |= {"PYTHONSAFEPATH": "1", **_certificates(layout, node, environ)}
    folder = RunLayout(layout.root.parent.parent).root
    mounts = container_mounts(container, folder, launch.roots)
    mounts += upload_mounts(launch.spec, folder.parent, mounts)
    mounts += prerequisite_mounts(launch.spec, folder.parent, mounts)
    mounts += () if scripted else package_mounts(layout.packages)
    settings = runtime_variables(changes, ())
    run = _container_run(container, launch, mounts, init, {**environ, **settings})
    assert launch.container_runtime is not None
    command = RUNTIMES[launch.container_runtime](run)
    user = {"USER": pwd.getpwuid(os.getuid()).pw_name}
    program = program_variables(launch.spec)
    environment = launch.spec.environment
    plan = ContainerPlan(
        command.argv,
        {**user, **settings, **command.variables},
        rank_variables,
        (*(name for name in environment.variables if name not in program), *environment.secrets),
        launch.container_runtime,
        run,
    )
    path = layout.container / f"plan-{node}.json"
    write_atomic(path, json.dumps(asdict(plan)), mode=0o600)
    return path


def _container_run(
    container: Container, launch: LaunchDocument, mounts: tuple[Mount, ...], init: Path, environ: Mapping[str, str]
) -> ContainerRun:
    image, runtime = image_argument(container, launch.roots), launch.container_runtime
    if runtime is None:
        raise EnvironmentRejectedError(
            "environment.container: this service has no container runtime (TRAINYARD_CONTAINER_RUNTIME)"
        )
    if runtime == "pyxis" and "SLURM_JOB_ID" not in environ:
        raise EnvironmentRejectedError("environment.container: pyxis is a plug-in of srun, and this job is not Slurm's")
    variables_file = Path(image, "ch", "environment")
    in_charliecloud = runtime == "charliecloud"
    return ContainerRun(
        image,
        (PYTHON, "-I", str(init)),
        mounts,
        gpus=launch.accelerator == "cuda",
        user=(os.getuid(), os.getgid()),
        groups=tuple(os.getgroups()),
        limits=_limits(),
        image_is_folder=is_image_path(image) and Path(image).is_dir(),
        variables_file=str(variables_file) if in_charliecloud and variables_file.is_file() else None,
        overlay=in_charliecloud and _has_overlay(environ),
        job=environ.get("SLURM_JOB_ID", ""),
        node=environ.get("SLURMD_NODENAME", ""),
    )


def _limits() -> dict[str, tuple[int, int]]:
    processes = tuple(
        min(limit, _PODMAN_PROCESSES) if limit != resource.RLIM_INFINITY else _PODMAN_PROCESSES
        for limit in resource.getrlimit(resource.RLIMIT_NPROC)
    )
    return {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
        "nproc": (processes[0], processes[1]),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK),
    }


def _has_overlay(environ: Mapping[str, str]) -> bool:
    """Return whether this node's Charliecloud lays a writable layer over an image, so that it needs no mount points."""
    program = shutil.which("ch-run", path=environ.get("PATH"))
    if program is None:
        return False
    done = subprocess.run(
        [program, "--feature", "overlayfs"],
        env=dict(environ),
        capture_output=True,
        timeout=_FEATURE_SECONDS,
        check=False,
    )
    return done.returncode == 0


def _certificates(layout: AttemptLayout, node: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the certificate authorities of the service, copied to where the container sees them."""
    file = Path(environ.get("SSL_CERT_FILE", ""))
    if not file.is_file():
        return {}
    copy = layout.container / f"authorities-{node}.pem"
    shutil.copyfile(file, copy)
    return {"SSL_CERT_FILE": str(copy)}


def _source(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)
