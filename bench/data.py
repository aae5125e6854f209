"""`python -m bench.data`: the time and memory with which a rank gets its text data, without and with cached tokens.

The data is Python's standard library as JSON lines, repeated up to the number of tokens; tokens are bytes. Each
measurement is a process of its own that reads the examples as a rank does and then makes batches from all over the
data. The memory is what the process alone holds (`RssAnon`); pages of the mapped cache belong to the page cache. The
floor is a plain loop in one process that parses and encodes each line once and keeps nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from trainyard.contract.spec.text_data import TextFiles

LENGTH = 1024
BATCH = 32
BATCHES = 100
MAX_MEMORY = 2**30
"""Bytes that a rank may hold."""


def main() -> int:
    """Print the table; return 0 if the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--child", choices=["load", "floor"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(load(options.folder) if options.child == "load" else floor(options.folder)))
        return 0
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as made:
        folder = Path(made)
        write_lines(folder / "data.jsonl", options.tokens)
        results = {
            "plain loop, one process": child("floor", folder),
            "without cached tokens": child("load", folder),
            "with cached tokens": child("load", folder),
        }
    print(f"{'':26} {'seconds':>9} {'tokens':>14} {'MiB of the process':>20}")
    for name, result in results.items():
        print(f"{name:26} {result['seconds']:9.1f} {result['tokens']:14,.0f} {result['memory'] / 2**20:20.0f}")
    ratio = results["plain loop, one process"]["seconds"] / results["without cached tokens"]["seconds"]
    print(f"built at {ratio:.2f} of the speed of the loop; a rank may hold {MAX_MEMORY / 2**20:.0f} MiB")
    return 0 if max(result["memory"] for result in results.values()) < MAX_MEMORY else 1


def write_lines(path: Path, tokens: int) -> None:
    """Write lines of text with about this number of bytes."""
    from worker.data.builtin import load_stdlib

    text = load_stdlib().numpy().tobytes().decode(errors="replace")
    lines = [json.dumps({"text": text[start : start + 4000]}) + "\n" for start in range(0, len(text), 4000)]
    written = 0
    with path.open("w") as file:
        while written < tokens:
            for line in lines:
                file.write(line)
                written += len(line)
                if written >= tokens:
                    break


def child(kind: str, folder: Path) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "bench.data", "--child", kind, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def floor(folder: Path) -> dict[str, float]:
    """Parse and encode each line."""
    start, tokens = time.perf_counter(), 0
    with (folder / "data.jsonl").open("rb") as file:
        for line in file:
            tokens += len(np.frombuffer(json.loads(line)["text"].encode(), dtype=np.uint8))
    return {"seconds": time.perf_counter() - start, "tokens": tokens, "memory": own_memory()}


def load(folder: Path) -> dict[str, float]:
    """Get the examples up to the first batch, then make batches from all over them."""
    import torch

    from worker.data.sampler import GlobalBatches
    from worker.data.text_examples import DataAccess, load_examples
    from worker.data.token_cache import TokenCache
    from worker.data.tokenizers import ByteTokenizer

    start = time.perf_counter()
    access = DataAccess(cache=TokenCache(folder / "cache"))
    examples, _ = load_examples(TextFiles(path=str(folder / "data.jsonl")), ByteTokenizer(), LENGTH, access)
    batches = GlobalBatches(examples.train, BATCH, seed=0)
    examples.train_batch(batches.at(0), torch.device("cpu"))
    seconds = time.perf_counter() - start
    for step in range(BATCHES):
        examples.train_batch(batches.at(step), torch.device("cpu"))
    tokens = int(examples.token_counts.tokens.sum())
    return {"seconds": seconds, "tokens": tokens, "memory": own_memory()}


def own_memory() -> int:
    """Return the bytes that this process alone holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    sys.exit(main())
