"""Phase `recovery`: a killed rank, a rank that stands still, and the cost of memory checkpoints, under the launcher."""

import random
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES
from bench.hang import Hang, plant
from bench.recovery import finished_steps, recover
from tests.integration.worker.harness import FakeService, Run, wait_for

MAX_AGAIN, MAX_NAMED, MAX_COST = 3.0, 30.0, 0.03
"""Seconds to the next step, seconds until a hang is named, and the share of a step."""
STEPS, WARM_STEPS, EVERY = 40, 10, 10


def cases(*, dry: bool) -> list[Case]:
    return [
        *(
            Case(f"killed rank, {name}", partial(_kill, options), 50)
            for name, options in (("plain", False), ("both options", True))
        ),
        *(Case(f"hang, {kind}", partial(_hang, kind), 90) for kind in (("stopped",) if dry else ("stopped", "file"))),
        Case("1B, memory checkpoints", _cost, 150),
    ]


def _kill(options: bool, tools: Tools) -> Outcome:
    measured = recover(tools.folder / "run", random.Random(0), options=options, site=tools.engine.site, ranks=1)
    values = {"first step s": measured.first, "next step s": measured.again, "repeated steps": measured.repeated}
    passed = None if tools.dry else measured.again <= MAX_AGAIN
    return Outcome(values, passed, f"the next step within {MAX_AGAIN:g} s" + (", forks and memory" if options else ""))


def _hang(kind: str, tools: Tools) -> Outcome:
    named = plant(Hang(kind, 1, 0), tools.engine.site)
    values = {"seconds": named.seconds, "named": named.kind, "ranks": str(named.ranks)}
    right = (named.kind, named.ranks) == (kind, [0])
    return Outcome(values, right and (tools.dry or named.seconds <= MAX_NAMED), f"named within {MAX_NAMED:g} s")


def _cost(tools: Tools) -> Outcome:
    """Compare the mean time of steps with a memory checkpoint after every tenth step, and without."""
    times = {every: _times(tools, every) for every in (None, EVERY)}
    cost = mean(times[EVERY]) / mean(times[None]) - 1
    values = {"ms": 1000 * median(times[None]), "ms with": 1000 * mean(times[EVERY]), "cost": cost}
    passed = None if tools.dry else cost <= MAX_COST
    return Outcome(values, passed, f"at most {MAX_COST:.0%} with one after every {EVERY} steps")


def _times(tools: Tools, every: int | None) -> list[float]:
    document: dict[str, Any] = SHAPES[0].document(dry=tools.dry, steps=STEPS, log={"every_steps": 1})
    document["checkpoint"] |= {"memory_steps": every}
    folder = tools.folder / str(every)
    with FakeService() as service:
        run = Run(folder, service.url, document, template=None, site=tools.engine.site)
        attempt = run.start()
        try:
            steps = wait_for(lambda: _all_steps(attempt.spool_file(1)), "the last step", 140)
        finally:
            assert run.process is not None
            run.process.kill()
            run.process.wait()
            time.sleep(1.0)
    return [after - before for (_, before), (_, after) in pairwise(steps[WARM_STEPS:])]


def _all_steps(spool: Path) -> list[tuple[int, float]]:
    """Return all steps with their times; none until the last step is finished."""
    steps = finished_steps(spool)
    return steps if len(steps) == STEPS else []
