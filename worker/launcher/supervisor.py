"""The function by which services of all releases start the launcher, `worker.launcher.supervisor:run`."""

from worker.launcher.start import run

__all__ = ["run"]
