"""Causes faults in real ranks; imported by each Python process that has this folder on its path.

`TRAINYARD_TEST_FAULTS` is a JSON list of {kind, rank, step, restart?, seconds?, until?, value?, trace?}. `hang` waits
as the file at `path` states, until the file is gone.
"""

import errno
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import threading
import time

FAULTS = json.loads(os.environ.get("TRAINYARD_TEST_FAULTS", "[]"))


class _Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Patches a module of the worker after its import."""

    def __init__(self, name, patch):
        self._name, self._patch = name, patch

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self._inner = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        self._inner.exec_module(module)
        self._patch(module)


def _patch_step(module):
    stepper = module.TrainStep
    original = stepper.run

    def run(self, step, indices, **options):
        for fault in FAULTS:
            if _applies(fault, self._ranks.rank, step):
                _inject(fault, self, step)
        return original(self, step, indices, **options)

    stepper.run = run
    dry_run = stepper.dry_run

    def dry_run_within(self, indices):
        for fault in FAULTS:
            if fault["kind"] == "memory_above" and fault.get("rank", self._ranks.rank) == self._ranks.rank:
                print(f"dry run of {len(indices)}", flush=True)
                if len(indices) > fault["examples"]:
                    raise MemoryError("planted")
        return dry_run(self, indices)

    stepper.dry_run = dry_run_within


def _patch_comm(module):
    """`corrupt` adds one to an element of what an operation leaves on one rank of one group; `absent` refuses it."""
    original = module.call

    def call(operation, member, data):
        for fault in FAULTS:
            if (fault.get("operation"), fault.get("group", member.group.name)) != (operation, member.group.name):
                continue
            if fault["kind"] == "absent":
                raise RuntimeError(f"this backend does not support {operation}")
            original(operation, member, data)
            if fault["kind"] == "corrupt" and fault["rank"] == member.rank:
                module.outcome(operation, data)[-1][17] += 1
            return
        original(operation, member, data)

    blocking = module._blocking

    def exchange(own, received, other, *, first):
        blocking(own, received, other, first=first)
        for fault in FAULTS:
            if fault.get("operation") == "send" and fault["rank"] == int(os.environ["RANK"]) and fault["from"] == other:
                received[17] += 1

    module.call, module._blocking = call, exchange


def _applies(fault, rank, step):
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    return (
        fault.get("rank", rank) == rank and fault.get("step", step) == step and fault.get("restart", restart) == restart
    )


def _inject(fault, stepper, step):
    match fault["kind"]:
        case "full_disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "raise":
            raise RuntimeError(f"planted at step {step}")
        case "memory":
            raise MemoryError("planted")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            if not os.path.exists(fault.get("until", "")):
                time.sleep(fault["seconds"])
        case "hang":
            hang(fault["path"])
        case "wait_for_checkpoint":
            # A test that kills a rank must wait for the asynchronous save.
            stepper_wait(fault["path"])
        case "nan":
            stepper._parameters[0][0].data.mul_(float("nan"))


def hang(path):
    lock = threading.Lock()
    lock.acquire()
    while os.path.exists(path):
        with open(path) as file:
            how = file.read()
        if how == "lock":
            lock.acquire(timeout=1)
        elif how == "barrier":
            import torch.distributed

            torch.distributed.barrier()
        elif how == "interpreter":
            import ctypes

            ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock
        elif how == "sleep":
            time.sleep(1)
        elif how == "compute":
            sum(range(1_000_000))
        elif how:
            with open(how) as pipe:
                pipe.read()


def stepper_wait(path):
    limit = time.monotonic() + 30
    while not os.path.exists(path) and time.monotonic() < limit:
        time.sleep(0.02)


if FAULTS:
    sys.meta_path[:0] = [
        _Hook("worker.engine.train_step", _patch_step),
        _Hook("worker.comm_check.correctness", _patch_comm),
    ]
