"""`python -m bench.engine`: our engine beside a bare loop, accelerate, Lightning Fabric and Hugging Face Trainer.

The same model, batch and fused AdamW with clipping, in one process group, in turns: each round trains every contender
for some steps. What counts is the median over the rounds of the ratio within a round, since machines drift; the bare
loop against itself says how far to trust it. The processor's time of rank 0, all threads, is steadier where others use
the machine too. Ours reports as a job does: a spool on disk, a sender thread, a service that takes what it is sent.

On a GPU, a Llama of 1.1 B parameters in bf16 follows, with and without compile. `--tiny` runs that part alone, with a
tiny one on the CPU: to see that it works.
"""

import argparse
import math
import os
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from bench import _llama
from bench._ranks import run_ranks

REQUIRED_SPEED = 0.98
"""The lowest accepted speed, relative to the bare loop and to the fastest peer."""
REQUIRED_UTILISATION = 0.5
"""The lowest accepted share of a GPU's dense peak throughput."""

_LARGE = {
    "task": "causal_lm",
    "precision": "fp32",
    "model": {"source": "builtin", "name": "gpt", "layers": 4, "width": 336, "heads": 6, "context": 64},
    "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
    "batch": {"size": 4},
    "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
    "log": {"every_steps": 10},
    "checkpoint": {"export": False},
}
_SMALL = {
    **_LARGE,
    "model": {"source": "builtin", "name": "gpt", "layers": 1, "width": 64, "heads": 2, "context": 32},
}


_ALL = ("trainyard", "bare loop", "bare, again", "accelerate", "Fabric", "Trainer")
_LLAMA = tuple(f"{name}{how}" for how in ("", " +compile") for name in ("trainyard", "bare loop", "Trainer"))


@dataclass(frozen=True)
class Setting:
    """One table."""

    name: str
    document: dict[str, Any]
    length: int
    """Tokens of an example."""
    processes: int
    steps: int
    rounds: int
    judged: bool
    """Whether the ratios must reach what is asked."""
    contenders: tuple[str, ...] = _ALL
    accelerator: str = "cpu"

    @property
    def tokens(self) -> int:
        """Of a step."""
        return int(self.document["batch"]["size"]) * self.length


SETTINGS = (
    Setting("5 M parameters, 1 process", _LARGE, 64, 1, steps=16, rounds=9, judged=True),
    Setting("5 M parameters, 2 processes", _LARGE, 64, 2, steps=16, rounds=9, judged=True),
    Setting("small model, 1 process", _SMALL, 32, 1, steps=300, rounds=7, judged=False),
    Setting("small model, 2 processes", _SMALL, 32, 2, steps=300, rounds=7, judged=False),
)


def main() -> int:
    """Returns the exit status: not 0 where a judged ratio is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description="Our engine beside its peers.")
    parser.add_argument("--tiny", action="store_true", help="only the GPU's part, with a tiny model on the CPU")
    if parser.parse_args().tiny:
        return 0 if llama(_llama.TINY, "cpu", batch=4, steps=8, rounds=1) else 1
    print(f"{os.cpu_count()} cores, one thread a process, torch CPU")
    results = [report(setting, measure(setting)) for setting in SETTINGS]
    return 0 if all([*results, on_gpu()]) else 1


def on_gpu() -> bool:
    """The Llama, where there is a GPU; whether it is good enough."""
    import torch

    if not torch.cuda.is_available():
        print(f"\n{_llama.LARGE.name}: not run, this machine has no GPU")
        return True
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    batch = _llama.examples_that_fit(torch.cuda.get_device_properties(0).total_memory)
    return llama(_llama.LARGE, "cuda", batch=batch, steps=28, rounds=3)


def llama(size: _llama.Size, accelerator: str, *, batch: int, steps: int, rounds: int) -> bool:
    """Make it, train it; whether it is good enough."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        document = _llama.make(Path(name), size, batch)
        judged = accelerator == "cuda"
        title = f"{size.name}, bf16, 1 process, sequences of {size.length}"
        setting = Setting(title, document, size.length, 1, steps, rounds, judged, _LLAMA, accelerator)
        return report(setting, measure(setting))


def measure(setting: Setting) -> dict[str, Any]:
    """Run the ranks of one setting."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name, closing(Sink()) as sink:
        plan = {
            "document": setting.document,
            "accelerator": setting.accelerator,
            "steps": setting.steps,
            "rounds": setting.rounds,
            "contenders": setting.contenders,
            "service_url": sink.url,
        }
        return run_ranks("bench._engine_rank", plan, setting.processes, Path(name))


def report(setting: Setting, measured: dict[str, Any]) -> bool:
    """Print one table; whether it is good enough."""
    walls, processors = measured["seconds"], measured["processor_seconds"]
    print(f"\n{setting.name}: {measured['parameters']:,} parameters, {setting.tokens} tokens a step")
    print(f"medians of {setting.rounds} rounds of {setting.steps} steps; ours: so many times as fast, round by round")
    print(f"{'':19}{'tokens/s':>10}{'us/step':>10}{'ours':>8}{'least':>8}{'most':>8}{'CPU us':>10}{'ours':>8}")
    for name in walls:
        ours = ratios(walls, name)
        wall, processor = median(walls[name]), median(processors[name])
        line = f"{name:19}{setting.tokens / wall:10.0f}{wall * 1e6:10.0f}{median(ours):8.3f}{min(ours):8.3f}"
        line += f"{max(ours):8.3f}{processor * 1e6:10.0f}{median(ratios(processors, name)):8.3f}"
        print(line + utilised(measured, walls[name]))
    for what, times in (("wall", walls), ("CPU", processors)):
        beyond = median(mine - bare for mine, bare in zip(times["trainyard"], times["bare loop"], strict=True))
        print(f"our own time a step beyond the bare loop's, {what}: {beyond * 1e6:.0f} us")
    return verdict(setting, measured)


def ratios(seconds: dict[str, list[float]], name: str) -> list[float]:
    """How many times as fast ours was, round by round: the compiled one against the compiled."""
    mine = seconds["trainyard +compile" if name.endswith("+compile") else "trainyard"]
    return [theirs / own for theirs, own in zip(seconds[name], mine, strict=True)]


def utilised(measured: dict[str, Any], walls: list[float]) -> str:
    """The model's arithmetic by the device's peak, where that is known."""
    share = utilisation(measured, walls)
    return f"  {share:.1%} of the peak" if share else ""


def utilisation(measured: dict[str, Any], walls: list[float]) -> float | None:
    return measured["flops"] / measured["peak"] / median(walls) if measured["flops"] and measured["peak"] else None


def verdict(setting: Setting, measured: dict[str, Any]) -> bool:
    """Print what was asked and is met or missed, where the setting is judged."""
    if not setting.judged:
        return True
    faster = {name: median(ratios(measured["seconds"], name)) for name in measured["seconds"]}
    worst = min(faster, key=lambda name: faster[name])
    good = faster[worst] >= REQUIRED_SPEED
    print(
        f"against {worst}, the fastest: {faster[worst]:.3f}; required: {REQUIRED_SPEED}" + ("" if good else "  MISSED")
    )
    share = utilisation(measured, measured["seconds"].get("trainyard +compile", [math.inf]))
    if share is None or not share:
        return good
    used = share >= REQUIRED_UTILISATION
    print(f"utilisation: {share:.1%}; required: {REQUIRED_UTILISATION:.0%}" + ("" if used else "  MISSED"))
    return good and used


class Sink:
    """A service that takes everything it is told."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


if __name__ == "__main__":
    sys.exit(main())
