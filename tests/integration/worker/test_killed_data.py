"""Runs on every kind of data that are killed continue with losses equal as text."""

import pytest

from tests.integration.worker.harness import examples_of_steps, run_layout
from tests.support import hf
from tests.support.images import digits, save_vit, write_folder

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
"""The first test waits for the runs that are not killed."""

STEPS, SAVED, KILLED = 6, 2, 4
"""The steps of a run, those after which it saves, and the one before which it is killed. An epoch has four or fewer."""
LABELS = ("bad", "good", "none")


class Cases:
    def __init__(self, folder):
        self.folder = folder
        hf.save_llama(folder / "model", layers=1)
        save_vit(folder / "vit")
        lines = {
            "texts": hf.texts(24),
            "completions": hf.completions(22),
            "chats": hf.chats(22),
            "pairs": hf.preferences(22),
            "answers": hf.labelled_answers(22),
            "labelled": [{"text": f"{LABELS[n % 3]} {n}", "label": LABELS[n % 3]} for n in range(22)],
            "related": [{"anchor": f"number {n}", "positive": f"it is {n * n}"} for n in range(30)],
        }
        self.files = {name: str(hf.write_lines(folder / f"{name}.jsonl", some)) for name, some in lines.items()}
        self.images = str(write_folder(folder / "images", digits(0, 22)))

    def spec(self, data, task="causal_lm", **changes):
        reads_images = task == "image_classification"
        return {
            "version": 1,
            "task": task,
            "precision": "fp32",
            "strategy": "ddp",
            "seed": 5,
            "model": {"source": "hf", "path": str(self.folder / ("vit" if reads_images else "model"))},
            "data": data,
            "steps": STEPS,
            "batch": {"size": 6, "micro_size": 2},
            "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 1.0},
            "checkpoint": {"every_steps": SAVED, "async": False},
            "log": {"every_steps": 1},
            **changes,
        }

    def text(self, name, **options):
        return {"source": "jsonl", "path": self.files[name], "max_length": 48, **options}

    def all(self):
        sources = [{"path": self.files[name], "name": name} for name in ("texts", "chats", "completions")]
        random = {"source": "images", "path": self.images, "crop": 0.5, "flip": True}
        objectives = {name: self.spec(self.text("pairs"), objective=name) for name in ("dpo", "orpo", "simpo")}
        return {
            "texts, packed": self.spec(self.text("texts")),
            "texts": self.spec(self.text("texts", packing=False)),
            "completions, packed": self.spec(self.text("completions"), batch={"size": 2}),
            "completions": self.spec(self.text("completions", packing=False)),
            "chats, packed": self.spec(self.text("chats"), batch={"size": 2}),
            "mixture": self.spec({"source": "mixture", "sources": sources, "max_length": 48}),
            **objectives,
            "kto": self.spec(self.text("answers"), objective="kto"),
            "classes": self.spec(self.text("labelled"), "sequence_classification"),
            "related texts": self.spec(
                self.text("related"), "text_embedding", batch={"size": 2}, embedding={"group_size": 3}
            ),
            "images": self.spec(random, "image_classification"),
            "images with loaders": self.spec(
                random, "image_classification", batch={"size": 6, "micro_size": 2, "loaders": 2}
            ),
        }


NAMES = (
    *("texts, packed", "texts", "completions, packed", "completions", "chats, packed", "mixture", "dpo", "orpo"),
    *("simpo", "kto", "classes", "related texts", "images", "images with loaders"),
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return Cases(tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def whole(cases):
    runs = {name: {"spec": spec} for name, spec in cases.all().items()}
    assert set(runs) == set(NAMES)
    return run_layout(2, runs, cases.folder / "whole", seconds=300)


@pytest.mark.parametrize("name", NAMES)
def test_losses_after_a_kill_are_those_of_the_whole_run(cases, whole, name):
    case = {"spec": cases.all()[name], "run": f"killed {name}"}
    run_layout(2, {name: {**case, "kill_at": KILLED}}, cases.folder / f"first {name}", killed=True)
    rest = run_layout(2, {name: case}, cases.folder / f"rest {name}")
    expected, losses = (result[0][name]["series"]["train/loss"] for result in (whole, rest))
    after = [str(step) for step in range(SAVED + 1, STEPS + 1)]
    assert losses == {step: expected[step] for step in after}
    assert len(set(expected.values())) == STEPS, "equal losses would hide an exchange of steps"
    examples = examples_of_steps(whole, name)
    assert examples_of_steps(rest, name) == {step: examples[step] for step in after}
