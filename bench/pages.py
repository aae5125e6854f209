"""`python -m bench.pages`: the longest task and the layout shift of pages with many runs and metrics, in Chromium.

Browsers report tasks from 50 ms on. The floor is the first page of the documentation. Run it on an idle machine: the
time of a task includes waits for the processor.
"""

import argparse
import logging
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import structlog
from playwright.sync_api import Page

from service.db.migrate import upgrade
from tests.support.browser import MEASURE_SHIFTS, signed_in_context, start_chromium
from tests.support.live_service import LiveService, live_service
from tests.support.world import SPEC

LIMIT_TASK_MS, LIMIT_SHIFT = 100, 0.02
POINTS, EVERY = 40, 10
OBSERVE = f"""{MEASURE_SHIFTS}
window.tasks = [];
new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({{type: "longtask", buffered: true}});
"""
ENGINE = ("train/loss", "train/lr", "train/grad_norm", "perf/examples_per_second", "memory/host_rss_bytes", "eval/loss")


def main() -> int:
    """Print a table. Return 0 if no page has a longer task or more shift than the limits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(f"{options.runs} runs of {options.metrics} metrics, {options.rounds} rounds")
    print("| page | longest task, median (ms) | longest task (ms) | layout shift |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        folder = Path(name)
        upgrade(f"sqlite:///{folder}/bench.sqlite")
        with live_service(folder / "bench.sqlite", folder / "state") as service:
            paths = fill(service, options.runs, options.metrics)
            slow = [name for name, path in paths.items() if not measure(service, name, path, options.rounds)]
    return 1 if slow else 0


def fill(service: LiveService, runs: int, metrics: int) -> Mapping[str, str]:
    """Make a sweep whose members have succeeded; return the pages to measure by their names."""
    client = service.client()
    grid = {"optimizer.lr": [1e-4 * (number + 1) for number in range(runs)]}
    sweep = client.submit_sweep({**SPEC, "gpus": 1, "steps": POINTS * EVERY}, grid=grid, name="many", max_parallel=runs)
    for number, member in enumerate(sweep.members):
        worker = service.start(member.job_id)
        names = [*ENGINE, *(f"group{one % 7}/metric_{one:03d}" for one in range(metrics - len(ENGINE)))]
        points = [
            (name, step, 2 + math.sin(number + offset + step / 50))
            for step in range(EVERY, POINTS * EVERY + 1, EVERY)
            for offset, name in enumerate(names)
        ]
        for begin in range(0, len(points), 1000):
            worker.metrics(points[begin : begin + 1000]).raise_for_status()
        worker.succeed()
    first = sweep.members[0].job_id
    return {
        "documentation (floor)": "/help",
        "sweep": f"/compare?sweep={sweep.id}",
        "compare 20 runs": "/compare?" + "&".join(f"job={member.job_id}" for member in sweep.members[:20]),
        "charts of a job": f"/jobs/{first}?tab=charts",
        "table of jobs": "/jobs",
    }


def measure(service: LiveService, name: str, path: str, rounds: int) -> bool:
    """Print the row of a page; return whether it is within the limits."""
    results = []
    with start_chromium() as browser, signed_in_context(browser, service.url, service.world.token) as context:
        page = context.new_page()
        page.set_viewport_size({"width": 1440, "height": 900})
        page.add_init_script(OBSERVE)
        for _ in range(rounds):
            page.goto(service.url + path, wait_until="load")
            results.append(_read(page))
    tasks, shifts = [task for task, _ in results], [shift for _, shift in results]
    print(f"| {name} | {median(tasks):.0f} | {max(tasks):.0f} | {max(shifts):.3f} |", flush=True)
    return max(tasks) <= LIMIT_TASK_MS and max(shifts) <= LIMIT_SHIFT


def _read(page: Page) -> tuple[float, float]:
    """Return the longest task in milliseconds, 0 if none took 50, and the layout shift of a page that has settled."""
    page.wait_for_timeout(5000)
    page.mouse.wheel(0, 1200)
    page.wait_for_timeout(2000)
    longest, shift = page.evaluate("[Math.max(0, ...window.tasks), window.layoutShift]")
    return float(longest), float(shift)


if __name__ == "__main__":
    sys.exit(main())
