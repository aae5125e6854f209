"""Usage of a node, its ranks and GPUs: from a copied /proc, and from a module that stands for NVML."""

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from worker.core import processes
from worker.launcher.gpu_usage import GpuUsage
from worker.launcher.node_usage import NodeUsage

MEMINFO = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n"
NET = "head\nhead\n lo: 9 0 0 0 0 0 0 0 9\n eth0: {received} 0 0 0 0 0 0 0 {sent} 0\n ib0: 5 0 0 0 0 0 0 0 7\n"


def write_proc(proc: Path, busy: int, idle: int, received: int, sent: int) -> None:
    (proc / "net").mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1\n")
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "net" / "dev").write_text(NET.format(received=received, sent=sent))


def write_process(proc: Path, pid: int, ticks: int, pages: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 8, str(pages)]
    (proc / str(pid) / "stat").write_text(f"{pid} (py) thon) {' '.join(fields)}\n")


def test_rates_are_of_the_time_between_two_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    times = iter((100.0, 110.0))
    monkeypatch.setattr(processes, "children", lambda _pid: [11, 12, 13])
    monkeypatch.setattr(processes, "descendants", lambda pid: [(21, 0)] if pid == 11 else [])
    monkeypatch.setattr(processes, "environment_variable", lambda pid, _: {11: "4", 12: "5"}.get(pid))
    usage = NodeUsage(1, tmp_path, tmp_path / "proc", lambda: next(times))
    write_proc(tmp_path / "proc", 100, 100, 1000, 0)
    write_process(tmp_path / "proc", 11, 50, 2)
    write_process(tmp_path / "proc", 12, 70, 1)
    node, ranks = usage.read()
    assert (node["memory_used_bytes"], node["memory_total_bytes"]) == (600 * 1024, 1000 * 1024)
    assert "cpu_percent" not in node
    assert ranks == {4: {"rss_bytes": 2 * os.sysconf("SC_PAGE_SIZE")}, 5: {"rss_bytes": os.sysconf("SC_PAGE_SIZE")}}

    write_proc(tmp_path / "proc", 175, 125, 21_000, 5_000)
    write_process(tmp_path / "proc", 11, 50 + 5 * ticks, 2)
    write_process(tmp_path / "proc", 21, 10 * ticks, 1)  # a loader that was started meanwhile
    node, ranks = usage.read()
    assert node["cpu_percent"] == 75
    assert (node["network_received_bytes_per_second"], node["network_sent_bytes_per_second"]) == (2000, 500)
    assert ranks[4] == {"rss_bytes": 3 * os.sysconf("SC_PAGE_SIZE"), "cpu_percent": 150}
    assert ranks[5]["cpu_percent"] == 0
    assert node["disk_used_bytes"] > 0
    assert node["disk_free_bytes"] > 0


def test_system_without_proc_has_only_the_disk(tmp_path: Path) -> None:
    node, ranks = NodeUsage(1, tmp_path, tmp_path / "none").read()
    assert set(node) == {"disk_used_bytes", "disk_free_bytes"}
    assert ranks == {}


class Nvml(ModuleType):
    """The functions of NVML that are used, with fixed values. Device 1 supports only few of them."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1

    def __init__(self, throttles: int = 0) -> None:
        super().__init__("pynvml")
        self.throttles = throttles

    def nvmlInit(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        values = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": int,
            "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-b": 1}[uuid],
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=97, memory=10),
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=1)],
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=5, total=80, free=75),
            "nvmlDeviceGetPowerUsage": lambda _: 650_500,
            "nvmlDeviceGetTemperature": lambda _device, _sensor: 61,
            "nvmlDeviceGetClockInfo": lambda _device, _clock: 1980,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: self.throttles,
            "nvmlDeviceGetTotalEccErrors": lambda device, kind, _: [3, 1][kind] if device == 0 else 1 / 0,
        }
        if name not in values:
            raise AttributeError(name)
        return values[name]


def test_gpus_are_numbered_as_in_the_job() -> None:
    usage = GpuUsage("GPU-b,0", lambda _: Nvml(throttles=0x4 | 0x40))
    first, second = usage.read().values()
    assert second == {
        "utilization_percent": 97, "memory_used_bytes": 5, "memory_total_bytes": 80, "power_watts": 650.5,
        "temperature_celsius": 61, "processes": 1, "sm_clock_mhz": 1980, "throttled_power": 1, "throttled_thermal": 1,
        "throttled_hardware": 0, "throttled_sync": 0, "ecc_corrected_errors": 3, "ecc_uncorrected_errors": 1,
    }  # fmt: skip
    assert set(second) - set(first) == {"ecc_corrected_errors", "ecc_uncorrected_errors"}
    assert list(GpuUsage(None, lambda _: Nvml()).read()) == [0, 1]
    assert GpuUsage("", lambda _: Nvml()).read() == {}


def test_node_without_nvml_or_with_a_broken_driver_has_no_gpus() -> None:
    def absent(_: str) -> ModuleType:
        raise ImportError

    def broken(_: str) -> ModuleType:
        raise RuntimeError("Driver/library version mismatch")

    assert GpuUsage(None, absent).read() == {}
    assert GpuUsage(None, broken).read() == {}
    assert GpuUsage("MIG-unknown", lambda _: Nvml()).read() == {}
