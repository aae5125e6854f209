"""`python -m bench.web_charts`: scripts and long tasks in Chromium of pages with charts, for 200 runs of 60 metrics.

A task is what the browser's main thread does without a pause; the browser reports those of 50 ms or more. Each page is
loaded with an empty cache, then its sections are opened, and it is scrolled through. The floor is a page of the same
service without charts.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, TimeoutError

from bench._seed_jobs import SeededJob, seed_jobs
from service.core.ids import new_id
from service.db.engine import Database
from service.db.migrate import upgrade
from service.db.models import Job, Sweep
from tests.support.browser import open_tab_in_new_profile, start_chromium
from tests.support.world import SPEC
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.reports import MAX_POINTS
from trainyard.demo import ServiceProcess

MAX_SCRIPT_BYTES = 300_000
MAX_TASK_MS = 100
SETTLE_MS = 3000
"""How long requests and drawing may take after a page is loaded, or used; its stream of changes never ends."""
DRAW_MS = 10_000
"""How long reading and drawing a chart may take."""
SECTIONS = ("train", "eval", "layer", "data", "other")

RECORD_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({ type: "longtask", buffered: true });
"""
SCRIPT_BYTES = """() => performance.getEntriesByType("resource").filter((entry) => /\\.js(\\?|$)/.test(entry.name))
  .reduce(([sent, whole], entry) => [sent + entry.encodedBodySize, whole + entry.decodedBodySize], [0, 0])"""
OPEN_SECTIONS = """async () => {
  for (const section of document.querySelectorAll("details:not([open])")) {
    if (!section.querySelector(".charts, .frame, canvas")) continue;
    section.open = true;
    await new Promise((done) => setTimeout(done, 50));
  }
}"""
SCROLL = """async () => {
  const frames = [];
  for (let i = 0; i <= 120; i++) {
    const started = performance.now();
    scrollTo(0, document.documentElement.scrollHeight * i / 120);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - started);
  }
  return frames;
}"""


@dataclass(frozen=True)
class PageFigures:
    """What one load of a page took; times in ms."""

    sent_bytes: int
    script_bytes: int
    longest_loading: float
    """The longest task in the first seconds of the page; 0 if none took 50 ms."""
    longest_using: float
    """The longest task while sections were opened, each chart was drawn, and the page was scrolled."""
    frame: float
    """Median time of a frame while scrolling."""
    charts: int
    """Charts that were drawn."""


def main() -> int:
    """Print the table; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--metrics", type=int, default=60)
    parser.add_argument("--points", type=int, default=100, help="of each metric of each run")
    parser.add_argument("--loads", type=int, default=5)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        folder = Path(directory)
        url = f"sqlite:///{folder}/bench.sqlite"
        upgrade(url)
        database = Database(url)
        jobs = seed_jobs(database, options.runs)
        sweep = seed_sweep(database, jobs)
        service = ServiceProcess(folder, database_url=url)
        service.start()
        try:
            with service.client():
                for job in jobs:
                    report(service.url, job, options.metrics, options.points)
                good = measure(service, jobs[0], sweep, options)
        finally:
            service.stop()
            database.dispose()
    return 0 if good else 1


def seed_sweep(database: Database, jobs: Sequence[SeededJob]) -> str:
    """Make the jobs members of one sweep over the learning rate, and return its id."""
    now = datetime.now(UTC)
    sweep = Sweep(
        id=new_id("swp", now), name="rates", created_by="bench", created_at=now, max_parallel=None, members=[]
    )
    with database.write() as session:
        for number, job in enumerate(jobs, 1):
            rate = number / 10_000
            spec = dump_spec(resolve(parse_spec({**SPEC, "optimizer": {"lr": rate}}), Site()))
            sweep.members.append({"job_id": job.id, "values": {"optimizer.lr": rate}})
            session.execute(sa.update(Job).where(Job.pk == job.pk).values(spec=spec, sweep_id=sweep.id))
        session.add(sweep)
    return sweep.id


def report(url: str, job: SeededJob, metrics: int, points: int) -> None:
    """Send the points of a run: falling curves with noise."""
    keys = ["train/loss", *(f"{SECTIONS[number % len(SECTIONS)]}/metric_{number}" for number in range(metrics - 1))]
    now = datetime.now(UTC).isoformat()
    headers = {"Authorization": f"Bearer {job.token}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        pairs = [(key, step) for key in keys for step in range(points)]
        for start in range(0, len(pairs), MAX_POINTS):
            sent = [
                {"key": key, "step": step, "value": 1 / (step + 1) + random.random() / 10, "time": now}
                for key, step in pairs[start : start + MAX_POINTS]
            ]
            body = {"execution": 1, "resumed_from_step": 0, "points": sent}
            client.post(job.metrics_path, json=body).raise_for_status()


def measure(service: ServiceProcess, job: SeededJob, sweep: str, options: Any) -> bool:
    """Print the figures of each page; return whether the targets are met."""
    token = admin_token_file(service.state_dir).read_text().strip()
    pages = (
        ("floor: a page without charts", "/no-such-page", "h1"),
        ("jobs", "/jobs", "tr.job"),
        (f"a run of {options.metrics} metrics", f"/jobs/{job.id}", "#chart-loss canvas"),
        (f"a sweep of {options.runs} such runs", f"/compare?sweep={sweep}", "#charts .frame"),
    )
    print("medians of the loads; the longest task is that of all loads")
    good = True
    with start_chromium() as browser:
        for label, path, selector in pages:
            loads = [figures_of(browser, service.url, token, path, selector) for _ in range(options.loads)]
            loading = max(one.longest_loading for one in loads)
            using = max(one.longest_using for one in loads)
            print(
                f"{label:32} scripts {loads[0].script_bytes / 1e3:4.0f} kB ({loads[0].sent_bytes / 1e3:.0f} kB sent)"
                f"  longest task: loading {loading:4.0f} ms, using {using:4.0f} ms"
                f"  frame {statistics.median(one.frame for one in loads):3.0f} ms  {loads[0].charts} charts"
            )
            good &= loads[0].script_bytes < MAX_SCRIPT_BYTES and max(loading, using) <= MAX_TASK_MS
    return good


def figures_of(browser: Browser, url: str, token: str, path: str, selector: str) -> PageFigures:
    """Load a page once, open its sections and scroll through it."""
    with open_tab_in_new_profile(browser, url) as visit:
        page = visit.sign_in(token)
        page.goto(url + "/no-such-page")
        page.context.new_cdp_session(page).send("Network.clearBrowserCache")
        page.add_init_script(RECORD_TASKS)
        page.goto(url + path)
        page.locator(selector).first.wait_for(timeout=120_000)
        page.wait_for_timeout(SETTLE_MS)
        sent, whole = page.evaluate(SCRIPT_BYTES)
        loading = longest_task(page)
        page.evaluate(OPEN_SECTIONS)
        charts = draw_all(page)
        frames = page.evaluate(SCROLL)
        page.wait_for_timeout(SETTLE_MS)
        return PageFigures(sent, whole, loading, longest_task(page), statistics.median(frames), charts)


def draw_all(page: Page) -> int:
    """Scroll to each chart until it has curves, since charts are read and drawn in view; return how many have some.

    Those of the training loop's metrics stay empty, since the runs did not report these.
    """
    frames, drawn = page.locator("#charts .frame:visible"), 0
    for number in range(frames.count()):
        frames.nth(number).scroll_into_view_if_needed()
        with suppress(TimeoutError):
            frames.nth(number).locator("canvas").first.wait_for(timeout=DRAW_MS)
            drawn += 1
    return drawn


def longest_task(page: Page) -> float:
    """Return the longest task since the last call, in ms."""
    page.evaluate("() => new Promise((done) => setTimeout(done, 200))")  # the observer is called after a task
    return max(page.evaluate("window.longTasks.splice(0)"), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
