"""`python -m bench.checkpoint`: how long a save of 500 MB stops training, compared with rank 0's `torch.save`.

Two processes, replicated (ddp) and sharded (fsdp) state: 42 M parameters and AdamW's two moments. The first save, which
allocates the buffers, is not counted. The program also prints how much the background write slows the steps.
"""

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench._ranks import run_ranks

MAX_STALL = 0.04
"""The longest accepted stall, as a share of the time of torch.save."""
RANKS, ROUNDS, STEPS = 2, 7, 12


def main() -> int:
    """Print the table; return 1 if a stall is longer than allowed, else 0."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        plan = {"folder": name, "strategies": ["ddp", "fsdp"], "rounds": ROUNDS, "steps": STEPS}
        results = run_ranks("bench._checkpoint_rank", plan, RANKS, Path(name))
    print(f"{os.cpu_count()} cores, {RANKS} processes, medians of {ROUNDS} saves after the first")
    print(
        f"{'':10}{'MB':>6}{'torch.save s':>14}{'stall s':>9}{'share':>8}{'total extra s':>16}{'complete after s':>18}"
    )
    passed = [report(name, row) for name, row in results.items()]
    print(f"share: median of stall / torch.save in the same round; allowed: {MAX_STALL:.0%}")
    return 0 if all(passed) else 1


def report(name: str, row: dict[str, Any]) -> bool:
    """Print one line; return whether the stall is short enough."""
    seconds: dict[str, list[float]] = row["seconds"]
    share = median(stall / whole for stall, whole in zip(seconds["stall"], seconds["torch.save"], strict=True))
    extra = median(
        stall + during - alone
        for stall, during, alone in zip(seconds["stall"], seconds["during"], seconds["alone"], strict=True)
    )
    line = f"{name:10}{row['bytes'] / 1e6:6.0f}{median(seconds['torch.save']):14.2f}{median(seconds['stall']):9.3f}"
    line += f"{share:8.1%}{extra:16.2f}{median(seconds['until complete']):18.2f}"
    print(line + ("" if share <= MAX_STALL else "  MISSED"))
    return share <= MAX_STALL


if __name__ == "__main__":
    sys.exit(main())
