"""`python -m tests.support.screenshots FOLDER`: screenshots of every page, dark and light, in three widths.

It starts a service with jobs that train: one runs, one waits for it, one failed, and one is paused.
"""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page

from service.web.pages.jobs import TABS
from tests.support.browser import open_tab_in_new_profile, start_chromium
from tests.support.live import wait_for_status, wait_for_step
from trainyard.client import Client
from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = {"wide": (1440, 900), "middle": (1024, 768), "narrow": (390, 844)}
_ANIMATION_TIME = 500
"""Milliseconds after which transitions have ended."""
_READY = """() => {
  const frames = [...document.querySelectorAll('.chart .frame')].filter((frame) => frame.offsetParent);
  const isDrawn = (frame) => frame.chart?.plot || frame.querySelector('.placeholder')?.textContent;
  return frames.every(isDrawn) && !document.querySelector('#plan-state')?.textContent;
}"""
"""Whether every chart with points is drawn, and no plan is pending."""

SMALL: dict[str, Any] = {
    "task": "image_classification",
    "gpus": 1,
    "model": {"source": "builtin", "name": "convnet", "channels": 8},
    "data": {"source": "builtin", "name": "digits", "eval_fraction": 0.2},
    "batch": {"size": 64},
    "log": {"every_steps": 2},
}


TABLE = [
    ("where", "optimizer.lr < 0.1 and exists eval/accuracy"),
    ("sort", "eval/loss"),
    *(("columns", name) for name in ("name", "optimizer.lr", "seed", "eval/loss", "max(eval/accuracy)", "runtime")),
    ("width", "name:190"),
    ("fix", "name"),
]
"""A view of the table of jobs: query, order and columns."""


@dataclass(frozen=True)
class Jobs:
    """Ids of the jobs that the pages show."""

    running: str
    failed: str
    compared: tuple[str, str]
    sweep: str
    search: str
    best: tuple[str, ...]
    """Those with the lowest loss."""


def main() -> int:
    """Take the screenshots; 1 if a page had errors or was wider than its window."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainyard-screens-") as made:
        service = ServiceProcess(Path(made), local_slots="2", tick_seconds="0.3", webhook_allowed_hosts="127.0.0.1")
        service.start()
        try:
            with service.client() as client, start_chromium() as browser:
                try:
                    jobs = submit_jobs(client)
                    token = admin_token_file(service.state_dir).read_text().strip()
                    problems = take_screenshots(browser, service.url, token, jobs, folder)
                finally:
                    cancel_all(client)
        finally:
            service.stop()
    print("\n".join(problems) or f"the screenshots are in {folder}")
    return 1 if problems else 0


def cancel_all(client: Client) -> None:
    """Cancel all jobs, and wait until they have ended."""
    active = [job.id for job in client.jobs(status=["queued", "submitting", "pending", "running", "paused"])]
    for job_id in active:
        client.cancel(job_id)
    for job_id in active:
        wait_for_status(client, job_id, "cancelled", "succeeded", "failed")


def wait_until_ended(client: Client, sweep_id: str) -> None:
    """Wait until a search has no trial left."""
    deadline = time.monotonic() + 300
    while client.sweep(sweep_id).state == "running":
        if time.monotonic() > deadline:
            raise TimeoutError(f"sweep {sweep_id} did not end")
        time.sleep(1)


def submit_jobs(client: Client) -> Jobs:
    """Submit jobs for every state that pages show differently, and wait until they have reached it."""
    rates = [
        client.submit({**SMALL, "name": f"digits-lr-{lr:g}", "steps": 150, "optimizer": {"name": "adamw", "lr": lr}})
        for lr in (1e-3, 1e-2)
    ]
    failed = client.submit({**SMALL, "name": "digits-too-hot", "steps": 60, "optimizer": {"name": "sgd", "lr": 1e12}})
    paused = client.submit({**SMALL, "name": "digits-waits-for-review", "steps": 900})
    client.pause(paused.id)
    small = {**SMALL, "name": "digits-sweep", "steps": 80, "evaluation": {"every_steps": 10}}
    grid: dict[str, list[float]] = {"optimizer.lr": [1e-3, 3e-3, 1e-2, 3e-2], "seed": [0, 1, 2]}
    sweep = client.submit_sweep(small, grid=grid, name="rates and seeds")
    client.create_token("anna", role="user", expires_in_days=90)
    client.revoke_token(client.create_token("old-laptop", role="viewer").id)
    client.test_webhook(client.create_webhook("http://127.0.0.1:9/hook", statuses=["failed", "lost"]).id)
    members = [member.job_id for member in sweep.members if member.job_id]
    for job_id in (rates[0].id, rates[1].id, failed.id, *members):
        wait_for_status(client, job_id, "succeeded", "failed")
    ranges = {"optimizer.lr": "log:1e-4:1e-1", "batch.size": "choice:32,64"}
    trials = {"algorithm": "tpe", "metric": "eval/loss", "space": ranges, "max_trials": 8}
    search = client.submit_sweep(small, search=trials, max_parallel=2, name="search for the rate")
    wait_until_ended(client, search.id)
    client.register_model("digits", rates[1].id, aliases=["prod"])
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write('{"prompt": "1 + 1 =", "completion": " 2"}\n' * 20)
        file.flush()
        client.upload_file(file.name, name="sums.jsonl")
    for job_id in members[:3]:
        client.job(job_id).edit(tags={"baseline": ""})
    every = {"checkpoint": {"every_steps": 100}, "evaluation": {"every_steps": 50}}
    running = client.submit({**SMALL, **every, "name": "digits-ddp", "gpus": 2, "strategy": "ddp", "steps": 100_000})
    client.submit({**SMALL, "name": "digits-fsdp", "gpus": 2, "strategy": "fsdp", "steps": 1000})
    wait_for_step(client, running.id, 120)
    best = client.jobs(where="seed >= 0 and exists eval/loss", sort="eval/loss", limit=4)
    return Jobs(running.id, failed.id, (rates[0].id, rates[1].id), sweep.id, search.id, tuple(job.id for job in best))


def take_screenshots(browser: Browser, url: str, token: str, jobs: Jobs, folder: Path) -> list[str]:
    """Take a screenshot of each page in each scheme and size; return the problems."""
    one, other = jobs.compared
    pages = {
        "jobs": "/jobs",
        "jobs-table": "/jobs?" + urlencode(TABLE) + "".join(f"&job={job_id}" for job_id in jobs.best),
        "job-running": f"/jobs/{jobs.running}",
        "job-failed": f"/jobs/{jobs.failed}",
        **{f"job-{tab}": f"/jobs/{one}?tab={tab}" for tab, _ in TABS},
        "job-charts-and-log": f"/jobs/{one}?tab=charts&drawer=log",
        "compare": f"/compare?job={one}&job={other}",
        "compare-sweep": f"/compare?sweep={jobs.sweep}",
        "compare-search": f"/compare?sweep={jobs.search}",
        "compare-empty": "/compare",
        "models": "/models",
        "files": "/files",
        "api-docs": "/docs",
        "help": "/help",
        "help-text": "/help/programs",
        "submit": "/submit?preset=gpt_fsdp",
        "submit-fork": f"/submit?fork={one}",
        "cluster": "/cluster",
        "admin": "/admin",
        "admin-webhooks": "/admin/webhooks",
        "admin-audit": "/admin/audit",
    }
    problems = []
    for scheme in SCHEMES:
        for form, size in SIZES.items():
            with open_tab_in_new_profile(browser, url, scheme=scheme, size=size) as visit:
                page = visit.go("/sign-in")
                page.screenshot(path=folder / f"sign-in-{scheme}-{form}.png")
                visit.sign_in(token)
                for name, path in pages.items():
                    visit.go(path)
                    problems += [
                        f"{name} {problem}"
                        for problem in take_screenshot(page, folder / f"{name}-{scheme}-{form}.png", size)
                    ]
                problems += visit.errors
    return sorted(set(problems))


def take_screenshot(page: Page, file: Path, size: tuple[int, int]) -> list[str]:
    """Take a screenshot in a window as tall as the page, since only visible charts are drawn."""
    page.wait_for_timeout(_ANIMATION_TIME)
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": size[0], "height": max(size[1], height)})
    page.wait_for_function(_READY, timeout=60_000)
    page.wait_for_timeout(_ANIMATION_TIME)
    page.screenshot(path=file, timeout=90_000)
    too_wide = bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
    page.set_viewport_size({"width": size[0], "height": size[1]})
    return [f"is wider than {size[0]} pixels"] if too_wide else []


if __name__ == "__main__":
    sys.exit(main())
