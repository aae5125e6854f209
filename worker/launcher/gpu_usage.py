"""Usage of a node's GPUs, from NVML. Without NVIDIA's driver or its Python module there are no GPUs. No torch."""

import importlib
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

log = logging.getLogger(__name__)

_THROTTLES: Mapping[str, int] = MappingProxyType(
    {"power": 0x4 | 0x80, "thermal": 0x20 | 0x40, "hardware": 0x8, "sync": 0x10}
)
"""Bits of `nvmlDeviceGetCurrentClocksThrottleReasons` (nvml.h), by the cause of the lower clock."""


class GpuUsage:
    """Reads the GPUs that this job may use."""

    def __init__(self, visible: str | None, load: Callable[[str], ModuleType] = importlib.import_module) -> None:
        """
        Args:
            visible: `CUDA_VISIBLE_DEVICES`; None: all GPUs.
        """
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        try:
            nvml: Any = load("pynvml")
            nvml.nvmlInit()
            self._handles = _find_handles(nvml, visible)
            self._nvml = nvml
        except ImportError:
            pass
        except Exception as error:
            # NVML's errors have a class in its own module; a broken driver must not end a job.
            log.info("the usage of GPUs is not read: %s", error)

    def read(self) -> dict[int, dict[str, float]]:
        """Return the values of each GPU, by its number in the job. Values that a GPU does not support are left out."""
        return {number: self._read(handle) for number, handle in self._handles.items()}

    def _read(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        readers: tuple[Callable[[], Mapping[str, float]], ...] = (
            lambda: {"utilization_percent": nvml.nvmlDeviceGetUtilizationRates(handle).gpu},
            lambda: {"processes": len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))},
            lambda: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
            lambda: {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
            lambda: {"temperature_celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
            lambda: {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)},
            lambda: _throttles(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            lambda: {"ecc_corrected_errors": _errors(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)},
            lambda: {"ecc_uncorrected_errors": _errors(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)},
        )
        values: dict[str, float] = {}
        for reader in readers:
            try:
                values.update({name: float(value) for name, value in reader().items()})
            except Exception:  # noqa: S112  # the card or the driver does not support it, as most cards have no ECC
                continue
        return values


def _find_handles(nvml: Any, visible: str | None) -> dict[int, Any]:
    """Return the handle of each GPU of the job, by its number in the job."""
    if visible is None:
        return {number: nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())}
    handles: dict[int, Any] = {}
    for number, name in enumerate(part.strip() for part in visible.split(",") if part.strip()):
        by_index = name.isascii() and name.isdigit()
        handles[number] = (
            nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
        )
    return handles


def _memory(info: Any) -> dict[str, float]:
    return {"memory_used_bytes": info.used, "memory_total_bytes": info.total}


def _throttles(reasons: int) -> dict[str, float]:
    """Return 1 for each kind of throttling that lowers the clock now, else 0."""
    return {f"throttled_{name}": float(bool(reasons & bits)) for name, bits in _THROTTLES.items()}


def _errors(nvml: Any, handle: Any, kind: int) -> float:
    return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))
