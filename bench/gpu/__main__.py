"""Runs the phases of `bench.gpu`, each in its own process, and prints a table of all results."""

import argparse
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

from bench.gpu.records import Record, ResultFile, markdown_table

PHASES = ("truth", "speed", "memory", "saves", "service")
WITHOUT_VALUES = ("speed", "memory", "saves")
"""Phases whose results do not depend on the values of weights."""


def main() -> int:
    """Return 1 if a case failed or missed its target, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of each phase")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only this phase; can be repeated")
    parser.add_argument("--case", action="append", help="only cases whose name contains this text; can be repeated")
    parser.add_argument("--dry", action="store_true", help="the same programs with tiny shapes on the CPU")
    parser.add_argument(
        "--output", type=Path, default=None, help="file of results; default: bench/results/DEVICE.jsonl, or build/bench"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    import torch

    from bench.gpu.machine import describe_machine

    if not options.dry and not torch.cuda.is_available():
        print("not run: torch sees no GPU; --dry runs the same programs on the CPU")
        return 0
    machine = describe_machine(dry=options.dry)
    results = ResultFile(options.output or default_output(machine["device"], dry=options.dry))
    if options.inside:
        until = time.monotonic() + 60 * options.minutes
        return run_phase(options.phase[0], results, options.case or [""], dry=options.dry, until=until)
    results.start(machine)
    for phase in options.phase or PHASES:
        command = [sys.executable, "-m", "bench.gpu", "--inside", "--phase", phase, "--minutes", str(options.minutes)]
        command += ["--output", str(results.path)] + (["--dry"] if options.dry else [])
        command += [f"--case={text}" for text in options.case or []]
        try:
            # A case that hangs is killed; the next run continues after it.
            status = subprocess.run(command, timeout=60 * options.minutes + 30, check=False).returncode
        except subprocess.TimeoutExpired:
            status = -1
        if status:
            results.append(Record(phase, "(the phase)", "failed", note=f"its process ended with status {status}"))
    records = results.records()
    table = markdown_table(machine, records)
    results.path.with_suffix(".md").write_text(table)
    print(table)
    return 1 if any(record.verdict in ("missed", "failed") for record in records) else 0


def run_phase(phase: str, results: ResultFile, texts: list[str], *, dry: bool, until: float) -> int:
    """Run the cases with one of the texts in their name that the file lacks, until the time is over."""
    from bench.gpu.cases import Tools, run_case
    from bench.gpu.training import GpuEngine
    from bench.gpu.weights import repeated_weights

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    done = {record.case for record in results.records() if record.phase == phase}
    engine = GpuEngine("cpu" if dry else "cuda")
    for case in importlib.import_module(f"bench.gpu.{phase}").cases(dry=dry):
        if case.name in done or not any(text in case.name for text in texts):
            continue
        if time.monotonic() > until:
            print(f"{phase}: the time is over; run again to continue", flush=True)
            break
        weights = repeated_weights() if phase in WITHOUT_VALUES else nullcontext()
        with tempfile.TemporaryDirectory(prefix="trainyard-gpu-") as folder, weights:
            record = run_case(phase, case, Tools(engine, Path(folder), dry))
        results.append(record)
        print(f"{phase}: {case.name}: {record.verdict} in {record.seconds:.1f} s {record.note}", flush=True)
    sys.stdout.flush()
    # torch's threads abort the process during the interpreter's shutdown.
    os._exit(0)


def default_output(device: str, *, dry: bool) -> Path:
    """Return the file of results. Those of a dry run measure nothing, so they are not written into the repository."""
    name = "".join(character if character.isalnum() else "-" for character in device).strip("-").lower()
    root = Path(__file__).parents[2]
    return (root / "build" / "bench" if dry else root / "bench" / "results") / f"{name}.jsonl"


if __name__ == "__main__":
    sys.exit(main())
