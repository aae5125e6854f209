"""`make screenshots`: every page of the dashboard, dark and light, wide and phone-narrow, with real jobs behind it."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page

from tests.support.browser import launched, visiting
from tests.support.live import wait_for_status, wait_for_step
from trainyard.client import Client
from trainyard.contract.places import admin_token_file
from trainyard.contract.templates import fill_template
from trainyard.demo import ServiceProcess

SIZES = {"wide": (1440, 900), "phone": (390, 844)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SETTLED = 2.5
"""Seconds that a page gets for its charts."""

Shots = dict[str, tuple[str, Callable[[Page], None]]]
"""By name: an address, and what is done there before the picture is taken."""


def nothing(_page: Page) -> None:
    """As it opens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("screenshots"))
    parser.add_argument("--only", action="append", help="Pages of these names.")
    asked = parser.parse_args()
    asked.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (process, client):
        shots = prepared(client)
        token = admin_token_file(process.state_dir).read_text().strip()
        wanted = {name: shot for name, shot in shots.items() if not asked.only or name in asked.only}
        for file in take(process.url, token, wanted, asked.folder):
            print(file)


@contextmanager
def served(folder: Path) -> Iterator[tuple[ServiceProcess, Client]]:
    """A service of its own, which may call a webhook on this machine."""
    process = ServiceProcess(folder, local_slots="4", tick_seconds="0.3", webhook_allowed_hosts="127.0.0.1")
    process.start()
    try:
        with process.client() as client:
            yield process, client
    finally:
        process.stop()


def prepared(client: Client) -> Shots:
    """Real jobs, and the pages that show them."""
    done = [
        client.submit(fill_template("digits_ddp", {"name": f"digits, lr {lr}", "optimizer.lr": lr, "epochs": 6}))
        for lr in (2e-3, 5e-4)
    ]
    base = fill_template("mlp_parity", {"epochs": 10, "gpus": 1, "strategy": "single"})
    grid = {"optimizer.lr": [0.001, 0.003, 0.01], "batch.size": [10, 20]}
    sweep = client.submit_sweep(base, grid=grid, name="learning rates")
    failed = client.submit(fill_template("mlp_parity", {"name": "too hot", "optimizer": {"name": "sgd", "lr": 1e9}}))
    for job_id in (*(job.id for job in done), *(member.job_id for member in sweep.members)):
        wait_for_status(client, job_id, "succeeded", "failed", limit=300)
    wait_for_status(client, failed.id, "failed", "succeeded", limit=120)
    running = client.submit(fill_template("gpt_stdlib", {"name": "running now", "steps": 100_000}))
    client.submit(fill_template("gpt_fsdp", {"name": "waits its turn", "gpus": 4}))
    wait_for_step(client, running.id, 20, limit=120)
    people(client)
    return {
        "sign-in": ("/sign-in", nothing),
        "jobs": ("/jobs", nothing),
        "job-running": (f"/jobs/{running.id}", nothing),
        "job-done": (f"/jobs/{done[0].id}", nothing),
        "job-failed": (f"/jobs/{failed.id}", nothing),
        "submit": ("/submit?preset=gpt_fsdp", nothing),
        "submit-errors": ("/submit?preset=gpt_stdlib", misspelt),
    }


def people(client: Client) -> None:
    """Tokens, and a webhook that answers nothing."""
    client.create_token("anna", role="user", expires_in_days=90)
    gone = client.create_token("old-laptop", role="viewer")
    client.revoke_token(gone.id)


def misspelt(page: Page) -> None:
    """Two fields that are wrong."""
    text = page.locator("#spec").input_value()
    page.locator("#spec").fill(text.replace("steps:", "stepps:").replace("lr: ", "lr: -"))
    page.locator("#problems li").first.wait_for()


def take(url: str, token: str, shots: Shots, folder: Path) -> Iterator[Path]:
    """A file for each page, scheme and size."""
    with launched() as browser:
        for scheme in SCHEMES:
            for size, pixels in SIZES.items():
                with visiting(browser, url, scheme=scheme, size=pixels) as visit:
                    visit.go("/sign-in")
                    for name, (path, act) in sorted(shots.items(), key=lambda shot: shot[0] != "sign-in"):
                        if name != "sign-in" and visit.page.url.endswith("/sign-in"):
                            visit.sign_in(token)
                        page = visit.go(path)
                        act(page)
                        time.sleep(SETTLED)
                        file = folder / f"{name}-{size}-{scheme}.png"
                        page.screenshot(path=file, full_page=True)
                        yield file




if __name__ == "__main__":
    main()
