"""`python -m bench.web`: time to first paint of the dashboard, and from a report to the chart, in Chromium.

The first useful paint is the frame after the one in which the rows of the table, or the curve, are in the document. It
is measured from the start of the navigation, with an empty and with a filled browser cache. The baseline is a page of
the same service without a table. The time from a report to the chart starts before the worker's request and ends with
the frame in which the chart has the point.
"""

import argparse
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from playwright.sync_api import Browser

from bench import read
from bench._seed_jobs import SeededJob, seed_jobs
from bench.list_jobs import fill
from service.db.engine import Database
from service.db.migrate import upgrade
from tests.support.browser import Visit, open_tab_in_new_profile, start_chromium
from tests.support.world import World
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

PAINT_SECONDS = 1.0
DELAY_SECONDS = 1.0
MAX_ROWS = 100

RECORD_PAINT = """
(() => {
  const check = () => {
    if (!document.querySelector(%r)) requestAnimationFrame(check);
    else requestAnimationFrame(() => { window.usefulPaint ??= performance.now(); });
  };
  requestAnimationFrame(check);
})();
"""

RECORD_POINTS = """() => {
  const times = window.pointTimes = {};
  const frame = document.querySelector('#chart-loss .frame');
  const record = () => {
    const steps = frame.chart.curves[0]?.x ?? [];
    for (let i = steps.length - 1; i >= 0 && !(steps[i] in times); i--) times[steps[i]] = Date.now();
    requestAnimationFrame(record);
  };
  record();
}"""


def main() -> int:
    """Print the tables; return 0 if the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--loads", type=int, default=15)
    parser.add_argument("--reports", type=int, default=100)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        folder = Path(directory)
        url = f"sqlite:///{folder}/bench.sqlite"
        upgrade(url)
        world = World(url, folder / "state")
        fill(world, options.jobs)
        database = world.database
        long, live = seed_jobs(database, 2)
        service = ServiceProcess(folder, database_url=url)
        service.start()
        try:
            with service.client():
                read.report_points(service.url, long, options.points)
                read.wait_for_downsampling(database, long, options.points)
                good = measure(service, database, long, live, options)
        finally:
            service.stop()
            database.dispose()
    return 0 if good else 1


def measure(service: ServiceProcess, database: Database, long: SeededJob, live: SeededJob, options: Any) -> bool:
    """Print the measurements of one browser; return whether the targets are met."""
    token = admin_token_file(service.state_dir).read_text().strip()
    pages = (
        ("a page of text", "/no-such-page", "h1", False),
        (f"{options.jobs:,} jobs", "/jobs", "tr.job:nth-of-type(15)", True),
        (f"a job of {options.points:,} points", f"/jobs/{long.id}", "#chart-loss canvas", True),
    )
    good = True
    with start_chromium() as browser:
        for label, path, selector, has_target in pages:
            cold = [
                paint_seconds(browser, service.url, token, path, selector, empty=True) for _ in range(options.loads)
            ]
            warm = [
                paint_seconds(browser, service.url, token, path, selector, empty=False) for _ in range(options.loads)
            ]
            print(f"{label:28} first useful paint: {_format_times(cold)}   from the cache: {_format_times(warm)}")
            good &= not has_target or max(read.p95(cold), read.p95(warm)) < PAINT_SECONDS
        with open_tab_in_new_profile(browser, service.url) as visit:
            visit.sign_in(token)
            good &= measure_scrolling(visit, options.jobs)
            delays = report_delays(visit, service.url, live, options.reports)
            print(f"from a report to the chart, {len(delays)} reports: {_format_times(delays)}")
            good &= read.p95(delays) < DELAY_SECONDS
    return good


def paint_seconds(browser: Browser, url: str, token: str, path: str, selector: str, *, empty: bool) -> float:
    """Load a page once and return the seconds to its first useful paint."""
    with open_tab_in_new_profile(browser, url) as visit:
        page = visit.sign_in(token)
        page.goto(url + "/no-such-page")
        if empty:
            page.context.new_cdp_session(page).send("Network.clearBrowserCache")
        page.add_init_script(RECORD_PAINT % selector)
        page.goto(url + path, wait_until="commit")
        page.wait_for_function("() => window.usefulPaint")
        return float(page.evaluate("window.usefulPaint")) / 1000


def measure_scrolling(visit: Visit, jobs: int) -> bool:
    """Sort all jobs by name and scroll through them; print the time per frame, and return whether few rows exist."""
    page = visit.go("/jobs?sort=name:asc")
    started = time.perf_counter()
    page.wait_for_function("n => document.getElementById('loaded').textContent.replace(/\\D/g, '') >= n", arg=jobs)
    loaded = time.perf_counter() - started
    frames, rows = page.evaluate(
        """async () => {
          const frames = []; let rows = 0;
          for (let i = 0; i < 120; i++) {
            const started = performance.now();
            scrollTo(0, document.body.scrollHeight * i / 120);
            await new Promise(requestAnimationFrame);
            frames.push(performance.now() - started);
            rows = Math.max(rows, document.querySelectorAll('tr.job').length);
          }
          return [frames, rows];
        }"""
    )
    seconds = [frame / 1000 for frame in frames]
    print(f"sorted by name after {loaded:.1f} s; {rows} rows in the document; per frame: {_format_times(seconds)}")
    return rows < MAX_ROWS


def report_delays(visit: Visit, url: str, job: SeededJob, count: int) -> list[float]:
    """Send points and return the seconds from sending each to its frame in the chart."""
    page = visit.go(f"/jobs/{job.id}")
    sent = {}
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {job.token}"}) as worker:

        def send(step: int) -> None:
            now = datetime.now(UTC)
            point = {"key": "train/loss", "step": step, "value": 1 / (step + 1), "time": now.isoformat()}
            sent[step] = time.time()
            body = {"execution": 1, "resumed_from_step": 0, "points": [point]}
            worker.post(job.metrics_path, json=body).raise_for_status()

        for step in range(3):
            send(step)
        page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.curves[0]?.x.length >= 3")
        page.evaluate(RECORD_POINTS)
        for step in range(3, 3 + count):
            send(step)
            page.wait_for_timeout(400)
        page.wait_for_function("step => step in window.pointTimes", arg=2 + count)
    received = {int(step): at / 1000 for step, at in page.evaluate("window.pointTimes").items()}
    return [received[step] - sent[step] for step in range(3, 3 + count)]


def _format_times(times: list[float]) -> str:
    return f"median {median(times) * 1e3:5.0f} ms  p95 {read.p95(times) * 1e3:5.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
