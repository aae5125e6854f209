"""How a site wants memory, GPUs and steps to be requested. The batch script and all checks of requests read it here."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from service.core.setting_parsers import parse_sbatch_options, parse_srun_options
from service.core.slurm_settings import GpuOption, MemoryOption, SlurmSettings
from trainyard.contract.problems import Problem
from trainyard.contract.spec.sections import Resources

_MIB_IN_GIB = 1024


@dataclass(frozen=True)
class Dialect:
    """The forms of requests. The defaults suit a Slurm without rules of its own."""

    memory: MemoryOption = "mem"
    gpus: GpuOption = "gres"
    propagate: str = "NONE"
    """The limits of the submitting process that jobs get. Empty: the limits in slurm.conf."""
    srun_options: Mapping[str, str | bool] = field(default_factory=dict)
    sbatch_options: Mapping[str, str | bool] = field(default_factory=dict)
    """The administrator's options of every job."""

    @classmethod
    def of(cls, settings: SlurmSettings) -> Self:
        return cls(
            settings.slurm_memory_option,
            settings.slurm_gpu_option,
            settings.slurm_propagate,
            parse_srun_options(settings.slurm_srun_options),
            parse_sbatch_options(settings.slurm_extra_options),
        )

    def request(self, resources: Resources, *, nodes: int, ranks: int, uses_gpus: bool) -> dict[str, str]:
        """Return the sbatch options that request memory and generic resources, for one task on each node.

        Args:
            ranks: The ranks on each node, each with its own GPU if they use any.
        """
        gpus = self._gpus(resources.gpu_type, nodes, ranks) if uses_gpus else {}
        generic = [gpus.pop("gres", None), resources.options.get("gres")]
        if listed := ",".join(str(value) for value in generic if value):
            gpus["gres"] = listed
        return gpus | self._memory(resources, ranks, uses_gpus)

    def _gpus(self, gpu_type: str | None, nodes: int, ranks: int) -> dict[str, str]:
        def count(number: int) -> str:
            return f"{gpu_type}:{number}" if gpu_type else str(number)

        if self.gpus == "gres":
            return {"gres": f"gpu:{count(ranks)}"}
        if self.gpus == "gpus-per-node":
            return {"gpus-per-node": count(ranks)}
        # If only the total is given, Slurm may give three GPUs to a node and one to another.
        each = {"gpus-per-task": count(ranks)} if nodes > 1 else {}
        return {"gpus": count(nodes * ranks), **each}

    def _memory(self, resources: Resources, ranks: int, uses_gpus: bool) -> dict[str, str]:
        size = resources.memory_gb_per_gpu
        if size is None or self.memory == "none":
            return {}
        if self.memory == "mem-per-cpu":
            return {"mem-per-cpu": f"{math.ceil(size * _MIB_IN_GIB / (resources.cpus_per_gpu or 1))}M"}
        if self.memory == "mem-per-gpu" and uses_gpus:
            return {"mem-per-gpu": f"{size}G"}
        # Slurm refuses memory for each GPU in a job without GPUs.
        return {"mem": f"{ranks * size}G"}

    def srun_arguments(self) -> list[str]:
        """Return the arguments of srun in addition to the arguments that the service needs itself."""
        # srun would give the limits of the first node's shell to the tasks on all nodes.
        limits = [f"--propagate={self.propagate}"] if self.propagate else []
        return limits + [
            f"--{name}" if value is True else f"--{name}={value}" for name, value in self.srun_options.items()
        ]

    def problems(self, resources: Resources) -> list[Problem]:
        """Return a problem for each field of a spec that has no effect at this site."""
        if self.memory != "none" or resources.memory_gb_per_gpu is None:
            return []
        message = "has no effect: jobs of this service request no memory (TRAINYARD_SLURM_MEMORY_OPTION); remove it"
        return [Problem(param="resources.memory_gb_per_gpu", message=message)]

    def test_script(self, partition: str, *, uses_gpus: bool) -> str:
        """Return the text of a batch script that requests a little of everything, to be tested and not submitted."""
        resources = Resources(memory_gb_per_gpu=1, cpus_per_gpu=1)
        request = self.request(resources, nodes=1, ranks=1, uses_gpus=uses_gpus)
        own = {"propagate": self.propagate} if self.propagate else {}
        options = {"partition": partition, "nodes": "1", "ntasks-per-node": "1", "cpus-per-task": "1"}
        lines = [
            f"#SBATCH --{name}" + ("" if value is True else f"={shlex.quote(str(value))}")
            for name, value in {**self.sbatch_options, **options, **request, **own}.items()
        ]
        return "\n".join(["#!/bin/sh", *lines, ""])
