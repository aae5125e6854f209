"""The programs of docs/programs.md go on from their last checkpoint after a kill."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.client import Client

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

DOCUMENT = Path(__file__).parents[2] / "docs" / "programs.md"
RECIPES = ("Hugging Face Trainer", "Lightning", "accelerate", "A loop of your own")
FREQUENT = ("Hugging Face Trainer", "A loop of your own")
"""A recipe of a library with checkpoints of its own, and one without; the others run with `make test-slow`."""
MINE = """
import atexit
import os
import signal
from pathlib import Path

import torch

updates = fetched = 0
mark = Path("killed")
first = not mark.exists()
atexit.register(lambda: print("updates of this start:", updates, flush=True))


class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x, labels):
        global updates
        updates += 1
        return {"loss": torch.nn.functional.mse_loss(super().forward(x), labels)}


class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        global fetched
        fetched += 1
        if first and fetched == 106:  # in the 27th batch of four
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.tensor([index / 64])
        return {"x": x, "labels": x * x}
"""


def recipe(title: str) -> str:
    """Return the program of a section."""
    match = re.search(
        rf"^### {re.escape(title)}\n+```python\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE
    )
    assert match is not None
    return match[1]


@pytest.mark.parametrize(
    "title",
    [title if title in FREQUENT else pytest.param(title, marks=pytest.mark.slow) for title in RECIPES],
)
def test_recipe_goes_on_from_its_checkpoint_after_a_kill(
    title: str, run: "Callable[..., subprocess.CompletedProcess[str]]", client: Client, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = run(recipe(title), "--name", "recipe", "--", "python", "train.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    # Checkpoints are written every 10 of 40 steps, and the first start was killed after 25 or 26.
    assert [line for line in done.stdout.splitlines() if "updates of" in line] == ["updates of this start: 20"]
    job = client.job("recipe")
    assert [event.type for event in client.events(job.id)].count("worker.restarted_in_place") == 1


def test_every_recipe_is_run() -> None:
    recipes = DOCUMENT.read_text().partition("\n## Recipes\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^### (.*)$", recipes, re.MULTILINE)) == RECIPES
