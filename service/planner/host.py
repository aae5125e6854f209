"""The memory of workers without GPUs: on the local backend the ranks share this machine's."""

import psutil

from service.planner.devices import Device

NAME = "this machine's memory"


def machine_bytes() -> int:
    """All of this machine's memory, whoever uses it now."""
    return int(psutil.virtual_memory().total)


def share_of_machine(total: int, ranks: int) -> Device:
    """What each rank has of it, as if it were a GPU of its own. Pure."""
    return Device(NAME, total // ranks, total // ranks)
