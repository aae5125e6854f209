"""Runs the cases of `bench.gpu` in one process, the most valuable first, and prints a table of all results.

A case starts only if the time that is left is enough for it. If a case ends or blocks the process, the next process
continues after it. A later run continues after the last case, and measures again where the sources have changed.
"""

import argparse
import faulthandler
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from bench.gpu.records import Record, ResultFile, markdown_table

PHASES = (
    "ceilings",
    "head",
    "update",
    "speed",
    "finetuning",
    "ranks",
    "saves",
    "recovery",
    "memory",
    "truth",
    "service",
)
WITH_VALUES = ("truth", "ranks", "recovery", "service")
"""Phases whose results depend on the values of weights."""
SECONDS = 460.0
MEMORY_FOLDER = Path("/dev/shm")


def main() -> int:
    """Return 1 if a case failed or missed its target, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of all cases together")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only this phase; can be repeated")
    parser.add_argument("--case", action="append", help="only cases whose name contains this text; can be repeated")
    parser.add_argument("--dry", action="store_true", help="the same programs with tiny shapes on the CPU")
    parser.add_argument(
        "--output", type=Path, default=None, help="file of results; default: bench/results/DEVICE.jsonl, or build/bench"
    )
    parser.add_argument("--until", type=float, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()

    import torch

    from bench.gpu.machine import describe_machine

    if not options.dry and not torch.cuda.is_available():
        print("not run: torch sees no GPU; --dry runs the same programs on the CPU")
        return 0
    machine = describe_machine(dry=options.dry)
    results = ResultFile(options.output or default_output(machine["device"], dry=options.dry))
    if options.until is not None:
        return run_cases(options, results)
    results.start(machine)
    run_processes(results, until=time.monotonic() + options.seconds)
    records = results.records()
    table = markdown_table(machine, records)
    results.path.with_suffix(".md").write_text(table)
    print(table)
    return 1 if any(record.verdict in ("missed", "failed", "started") for record in records) else 0


def run_processes(results: ResultFile, *, until: float) -> None:
    """Start a process for the cases, and another one as long as a case ends it."""
    while time.monotonic() < until:
        before = len(results)
        command = [
            sys.executable,
            "-m",
            "bench.gpu",
            *sys.argv[1:],
            "--until",
            str(until),
            "--output",
            str(results.path),
        ]
        status = subprocess.run(command, check=False).returncode
        if status and len(results) == before:
            raise SystemExit(f"the process of the cases ended with status {status} before a case began")
        if not status:
            return


def run_cases(options: argparse.Namespace, results: ResultFile) -> int:
    """Run the selected cases in order, until the time is over: all whose results with these sources the file lacks."""
    from bench.gpu.cases import Tools, run_case
    from bench.gpu.machine import sources_digest
    from bench.gpu.training import GpuEngine
    from bench.gpu.weights import repeated_weights

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    sources = sources_digest()
    done = {(record.phase, record.case) for record in results.records(sources)}
    engine = GpuEngine("cpu" if options.dry else "cuda")
    for phase in options.phase or PHASES:
        for case in importlib.import_module(f"bench.gpu.{phase}").cases(dry=options.dry):
            if (phase, case.name) in done or not any(text in case.name for text in options.case or [""]):
                continue
            if time.monotonic() + case.seconds > options.until:
                print(f"{phase}: {case.name}: not run, needs {case.seconds:.0f} s; run again to continue", flush=True)
                continue
            results.append(Record(phase, case.name, "started", note="its process ended", sources=sources))
            faulthandler.dump_traceback_later(2 * case.seconds + 30, exit=True)
            engine.release()
            folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() and not options.dry else None
            weights = nullcontext() if phase in WITH_VALUES else repeated_weights()
            with (
                tempfile.TemporaryDirectory(prefix="trainyard-gpu-", dir=folder, ignore_cleanup_errors=True) as name,
                weights,
            ):
                record = run_case(phase, case, Tools(engine, Path(name), options.dry, results.records(sources)))
            faulthandler.cancel_dump_traceback_later()
            results.append(replace(record, sources=sources))
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
