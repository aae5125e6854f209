"""The command line of each container runtime. Pure functions, which read no file and no environment.

All of them start one command with the host's network and shared memory, without a login shell or the image's
entrypoint, and connect it to this process's standard input and output. A rank's variables are on none of the
command lines, which every user of the node can read: they go through the standard input (`init_process`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.contract.spec.containers import (
    ContainerRuntime,
    Mount,
    is_image_path,
    parse_reference,
)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NVIDIA = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""Variables that enroot's hook for GPUs reads; NVIDIA's images have them already."""

_SECURITY = ("--security-opt=no-new-privileges", "--security-opt=label=disable")
"""The second option keeps SELinux from denying access to the mounted folders, which keep their labels."""


@dataclass(frozen=True)
class ContainerRun:
    """The command, image and options of a container, independent of the runtime."""

    image: str
    """A path or a reference, as in the spec."""
    command: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    gpus: bool = False
    user: tuple[int, int] = (0, 0)
    """User and group of the processes, where the runtime does not use its caller's."""
    groups: tuple[int, ...] = ()
    """Further groups of the user, by which folders of a team are readable."""
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard resource limits by name, where the runtime would set others."""
    image_is_folder: bool = False
    variables_file: str | None = None
    """Charliecloud: the file with the variables of the image."""
    overlay: bool = False
    """Charliecloud: whether `ch-run` can lay a writable layer over the image."""
    job: str = ""
    """Pyxis: the Slurm job to which the container belongs."""
    node: str = ""
    """Pyxis: the name of this node in Slurm."""
    terminal: bool = False
    """Whether the command gets the terminal of its caller, instead of pipes."""


@dataclass(frozen=True)
class RuntimeCommand:
    """The process of a container runtime."""

    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables for the environment of the runtime itself."""


def apptainer(run: ContainerRun) -> RuntimeCommand:
    """The container shares the namespaces of the host but for its files. `/tmp` is the host's, too."""
    image = run.image if is_image_path(run.image) else f"docker://{parse_reference(run.image)}"
    argv = ["apptainer", "exec", "--cleanenv", "--no-eval", "--no-home", "--no-mount=cwd"]
    argv += ["--nv"] * run.gpus
    argv += [f"--bind={mount.source}:{mount.target}{':ro' * mount.read_only}" for mount in run.mounts]
    return RuntimeCommand((*argv, image, *run.command))


def charliecloud(run: ContainerRun) -> RuntimeCommand:
    """The container shares the namespaces of the host but for its files. Libraries of the GPUs must be in the image
    (`ch-fromhost --nvidia`), and without an overlay so must the mount points."""
    image = run.image if is_image_path(run.image) else str(parse_reference(run.image))
    argv = ["ch-run", "--unset-env=*", "--env-no-expand", f"--set-env=PATH={_PATH}"]
    argv += [f"--set-env={run.variables_file}"] if run.variables_file else []
    argv += ["--write-fake"] * run.overlay
    # ch-run has no read-only mounts; a spec that requests them is refused.
    argv += [f"--bind={mount.source}:{mount.target}" for mount in run.mounts]
    return RuntimeCommand((*argv, image, "--", *run.command))


def enroot(run: ContainerRun) -> RuntimeCommand:
    """A reference is the name of a container that was made on the node before (`enroot create`)."""
    image = run.image if is_image_path(run.image) else str(parse_reference(run.image))
    argv = ["enroot", "start", *_assignments("--env", _NVIDIA if run.gpus else {})]
    for mount in run.mounts:
        options = "x-create=auto,rbind" + ",ro" * mount.read_only
        argv += ["--mount", f"{mount.source}:{mount.target}:none:{options}"]
    return RuntimeCommand((*argv, "--", image, *run.command))


def pyxis(run: ContainerRun) -> RuntimeCommand:
    """A step of one task on this node, since pyxis is a plug-in of srun."""
    reference = None if is_image_path(run.image) else parse_reference(run.image)
    image = run.image if reference is None else "#".join(filter(None, reference))
    mounts = ",".join(f"{mount.source}:{mount.target}{':ro' * mount.read_only}" for mount in run.mounts)
    argv = ["srun", f"--jobid={run.job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={run.node}"]
    argv += ["--mem=0", "--cpu-bind=none", "--mpi=none", "--pty" if run.terminal else "--input=all"]
    argv += ["--kill-on-bad-exit=1", "--quiet"]
    argv += [f"--container-image={image}", f"--container-mounts={mounts}"]
    argv += ["--no-container-mount-home", "--no-container-entrypoint", "--container-workdir=/"]
    return RuntimeCommand((*argv, *run.command), _NVIDIA if run.gpus else {})


def podman(run: ContainerRun) -> RuntimeCommand:
    """The container gets no cgroup of its own, and stays in the job's cgroup with the job's limits, devices and end."""
    argv = ["podman", "run", "--rm", "--interactive", "--cgroups=disabled", "--log-driver=none"]
    argv += ["--tty"] * run.terminal
    argv += ["--network=host", "--ipc=host", "--cap-drop=all", *_SECURITY]
    argv += ["--group-add=keep-groups"]
    argv += _limits(run)
    argv += ["--device=nvidia.com/gpu=all"] * run.gpus
    argv += _bind_mounts(run.mounts)
    # The command replaces the image's entrypoint; its arguments follow the image.
    argv += [f"--entrypoint={run.command[0]}"]
    if not is_image_path(run.image):
        image = [str(parse_reference(run.image))]
    elif run.image_is_folder:
        image = ["--rootfs", f"{run.image}:O"]
    else:
        image = [f"docker-archive:{run.image}"]
    return RuntimeCommand((*argv, *image, *run.command[1:]))


def docker(run: ContainerRun) -> RuntimeCommand:
    """The container is a child of the daemon: it is outside of the job's cgroup, with the user of the job only."""
    argv = ["docker", "run", "--rm", "--interactive", "--log-driver=none", "--network=host", "--ipc=host"]
    argv += ["--tty"] * run.terminal
    argv += ["--cap-drop=all", *_SECURITY, f"--user={run.user[0]}:{run.user[1]}"]
    argv += [f"--group-add={group}" for group in run.groups]
    argv += _limits(run)
    argv += ["--gpus=all"] * run.gpus
    argv += _bind_mounts(run.mounts)
    return RuntimeCommand((*argv, f"--entrypoint={run.command[0]}", str(parse_reference(run.image)), *run.command[1:]))


RUNTIMES: Mapping[ContainerRuntime, Callable[[ContainerRun], RuntimeCommand]] = {
    "apptainer": apptainer,
    "charliecloud": charliecloud,
    "docker": docker,
    "enroot": enroot,
    "podman": podman,
    "pyxis": pyxis,
}


def _limits(run: ContainerRun) -> list[str]:
    return [f"--ulimit={name}={soft}:{hard}" for name, (soft, hard) in run.limits.items()]


def _bind_mounts(mounts: Sequence[Mount]) -> list[str]:
    return [
        f"--mount=type=bind,source={mount.source},target={mount.target}{',readonly' * mount.read_only}"
        for mount in mounts
    ]


def _assignments(option: str, variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in (option, f"{name}={value}")]
