"""Phase `ranks`: several ranks on one device.

NCCL refuses two ranks on one device. gloo takes tensors on it, which shows that kernels, sharding and updates are
right, not how fast. A process group that sends nothing makes the memory and the compute of one rank of eight real: its
speed is an upper bound.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, Shape
from bench.gpu.truth import base_document
from worker.core.distributed import Gather, Ranks

TOLERANCE = 1e-4
WORLD = 8


def cases(*, dry: bool) -> list[Case]:
    shape = SHAPES[0 if dry else 2]
    return [
        *(Case(f"two ranks over gloo, {name}", partial(_compare, name), 25) for name in ("ddp", "fsdp", "zero1")),
        Case(f"one of {WORLD} ranks, {shape.name}, fsdp", partial(_one_of_many, shape), 60),
    ]


def _compare(strategy: str, tools: Tools) -> Outcome:
    """Compare the losses of two ranks with the losses of one."""
    document = base_document(dry=tools.dry)
    expected = [float(loss) for loss in tools.engine.train(document).losses]
    outputs = _run(2, "gloo", document | {"strategy": strategy, "gpus": 2}, dry=tools.dry)
    actual = [float(loss) for loss in outputs[0]["losses"]]
    pairs = zip(actual, expected, strict=True)
    difference = max(abs(one - other) / abs(other) for one, other in pairs)
    return Outcome(
        {"largest relative difference": difference}, difference <= TOLERANCE, f"at most {TOLERANCE:g} of one rank"
    )


def _one_of_many(shape: Shape, tools: Tools) -> Outcome:
    """Train as one rank of several, of which the others do not exist."""
    document = shape.document(
        dry=tools.dry, strategy="fsdp", gpus=WORLD, steps=9, compile=not tools.dry, log={"every_steps": 9}
    )
    document["batch"] = document["batch"] | {"size": WORLD * document["batch"]["micro_size"]}
    output = _run(1, "fake", document, dry=tools.dry)[0]
    seconds = output["seconds"][len(output["seconds"]) // 2]
    tokens = document["batch"]["micro_size"] * document["model"]["context"]
    return Outcome(
        {"tokens/s of a rank": tokens / seconds, "peak GiB": output["peak GiB"]}, note="an upper bound of the speed"
    )


def _run(count: int, backend: str, document: dict[str, Any], *, dry: bool) -> list[dict[str, Any]]:
    """Train in that many processes, and return what each printed.

    Raises:
        RuntimeError: A process failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = []
    for rank in range(count):
        group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        environment = os.environ | group | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": "0"}
        command = [sys.executable, "-m", "bench.gpu.ranks", backend, "cpu" if dry else "cuda", json.dumps(document)]
        children.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        results = [child.communicate(timeout=120) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, results, strict=True):
        if child.returncode:
            raise RuntimeError((errors.strip().splitlines() or ["no output"])[-1])
    return [json.loads(output.splitlines()[-1]) for output, _ in results]


def _train(backend: str, accelerator: str, document: dict[str, Any]) -> None:
    """Train as one rank, and print the losses."""
    from bench.gpu.training import GpuEngine

    device = torch.device("cuda:0" if accelerator == "cuda" else "cpu")
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=document["gpus"])
        group = dist.group.WORLD
        assert group is not None
        ranks: Ranks = _Alone(0, document["gpus"], 0, device, group, group)
    else:
        dist.init_process_group("gloo")
        groups = [cast(dist.ProcessGroup, dist.new_group(backend="gloo")) for _ in range(2)]
        ranks = Ranks(dist.get_rank(), dist.get_world_size(), dist.get_rank(), device, *groups)
    trained = GpuEngine(cast(Any, accelerator), ranks).train(document)
    values = {"losses": trained.losses, "seconds": sorted(trained.seconds[3:]), "peak GiB": trained.peak_bytes / 2**30}
    print(json.dumps(values), flush=True)
    os._exit(0)


@dataclass(frozen=True)
class _Alone(Ranks):
    """One of several ranks, of which the others do not exist and seem to have the same values."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)] * self.world

    def begin_gather(self, values: Sequence[float]) -> Gather:
        return Gather([torch.tensor(values, dtype=torch.float64)] * self.world, None)

    def gather_text(self, text: str) -> list[str]:
        return [text] * self.world

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([rows] * self.world)

    def any(self, flag: bool) -> bool:
        return flag

    def from_rank_0(self, value: int) -> int:
        return value

    def broadcast(self, value: Any, source: int = 0) -> Any:
        return value

    def barrier(self) -> None:
        """There is no other rank."""


if __name__ == "__main__":
    _train(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
