"""Settings of the Slurm backend."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.core.setting_parsers import parse_option_names, parse_sbatch_options, parse_srun_options

MemoryOption = Literal["mem", "mem-per-cpu", "mem-per-gpu", "none"]
_LIMIT = "(AS|CORE|CPU|DATA|FSIZE|MEMLOCK|NOFILE|NPROC|RSS|STACK)"
GpuOption = Literal["gres", "gpus-per-node", "gpus"]


class SlurmSettings(BaseSettings):
    """The settings that define how the service uses Slurm."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    slurm_poll_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Minimum time between two polls of Slurm; a poll calls squeue once and sacct at most once."""
    slurm_max_poll_seconds: Annotated[float, Field(gt=0)] = 60.0
    """While nothing changes, the pause between two polls doubles up to this value; a change resets it."""
    slurm_python: Path | None = None
    """Interpreter on the nodes that has torch and Trainyard's worker;
    default: the path of the service's interpreter."""
    slurm_submit_timeout_seconds: Annotated[float, Field(ge=1)] = 300.0
    """Timeout of sbatch. It should exceed two minutes, because sbatch itself retries for that long."""
    slurm_confirm_absence_seconds: Annotated[float, Field(ge=1)] = 180.0
    """An unconfirmed submission is repeated when three lookups have not found it, and this time has passed since the
    last sbatch call. It should exceed the time that a request of sbatch can be in transit."""
    slurm_signal_lead_seconds: Annotated[int, Field(ge=1, le=3600)] = 180
    """How long before a job's time limit Slurm sends the warning signal. Saving a checkpoint should take less time."""
    slurm_time_limit_minutes: Annotated[int | None, Field(ge=1)] = None
    """Time limit of jobs that set none; default: the limit of their partition."""
    slurm_gpus_per_node: Annotated[int | None, Field(ge=1)] = None
    """Ranks on each node for jobs that do not set it; default: all ranks on a single node."""
    slurm_preflight: bool = True
    """Whether to reject a job at submission if it requests more than the cluster has. Disable this check if a Slurm
    plugin of the site changes requests."""
    slurm_host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]{0,128}$")] = ""
    """Suffix that turns a node's name into its name on the network between the nodes, such as `-ib0`."""
    slurm_memory_option: MemoryOption = "mem"
    """sbatch option by which jobs request memory. `mem-per-gpu` applies to jobs with GPUs, others use `mem`; with
    `none` no job requests memory, and a spec that does is rejected."""
    slurm_gpu_option: GpuOption = "gres"
    """sbatch option by which jobs request GPUs: `gres` as `--gres=gpu:...`."""
    slurm_propagate: Annotated[str, Field(pattern=rf"^(|ALL|NONE|{_LIMIT}(,{_LIMIT})*)$")] = "NONE"
    """Limits of the service's process that jobs get (`--propagate`), such as `STACK,CORE`. `NONE`: jobs have the limits
    of the nodes. Empty: the limits in slurm.conf."""
    slurm_srun_options: str = ""
    """Options of srun in every job, such as `--mpi=none --cpu-bind=none`; `service/core/setting_parsers.py` lists the
    allowed options."""
    slurm_extra_options: str = ""
    """sbatch options of every job, such as `--reservation=ai --exclusive`; `service/core/setting_parsers.py` lists the
    allowed options. A spec may not set them again."""
    slurm_allowed_options: Annotated[tuple[str, ...], NoDecode] = ("default",)
    """sbatch options that specs may set in `resources.options`, comma-separated. `default`: the options that
    `docs/operations.md` lists as default; `-name` removes an option: `default,mail-type,-nodelist`. Empty: none."""
    slurm_network_interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,-]{0,64}$")] = ""
    """Network interface that ranks on different nodes use, such as `ib0`; default: gloo and nccl choose."""

    @field_validator("slurm_extra_options")
    @classmethod
    def _known_options(cls, text: str) -> str:
        parse_sbatch_options(text)
        return text

    @field_validator("slurm_srun_options")
    @classmethod
    def _known_srun_options(cls, text: str) -> str:
        parse_srun_options(text)
        return text

    @field_validator("slurm_allowed_options")
    @classmethod
    def _checkable_options(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        parse_option_names(names)
        return names
