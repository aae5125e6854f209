"""One rank that trains many small specs in one process group, and writes down everything there is to compare.

`python layout_program.py <cases.json> <output folder>`, with torchrun's variables set.
"""

import json
import os
import sys
from pathlib import Path

from trainyard.contract.resolve import Site, resolve
from trainyard.contract.spec import parse_spec
from worker import distributed
from worker.engine.step import Stepper
from worker.engine.trainer import Trainer
from worker.errors import TrainingError
from worker.signals import StopSignal
from worker.tasks.select import select_task


class ListReporter:
    def __init__(self):
        self.said = {}

    def points(self, step, values, progress=None):
        for key, value in values.items():
            self.said.setdefault(key, {})[step] = repr(value)

    def event(self, *args, **options):
        pass


class NoCheckpoints:
    start_step = last_step = saved_ranks = 0

    def due(self, step, total):
        return False

    def finish(self):
        pass


class Watched:
    """Records the examples of each step, and multiplies a planted loss."""

    def __init__(self, plant):
        self.plant = plant
        self.step = 0
        self.examples = {}
        self.scales = {}

    def __enter__(self):
        self.run, self.load = Stepper.run, Stepper._load
        watched = self

        def run(stepper, step, indices, **options):
            watched.step = step
            result = watched.run(stepper, step, indices, **options)
            if stepper._precision.scaler:
                watched.scales[step] = stepper._precision.scaler.get_scale()
            return result

        def load(stepper, piece, indices):
            watched.examples.setdefault(watched.step, []).extend(piece.tolist())
            return watched.load(stepper, piece, indices)

        Stepper.run, Stepper._load = run, load
        return self

    def __exit__(self, *exc):
        Stepper.run, Stepper._load = self.run, self.load

    def wrap(self, task, rank):
        original = task.loss_sum

        def loss_sum(model, batch):
            loss = original(model, batch)
            planted = self.plant and (self.plant["rank"], self.plant["step"]) == (rank, self.step)
            return loss * float(self.plant["value"]) if planted else loss

        task.loss_sum = loss_sum
        return task


def train(case, ranks, folder):
    document = {**case["spec"], "gpus": ranks.world}
    if ranks.world == 1 and case.get("single", True):
        document["strategy"] = "single"
    spec = resolve(parse_spec(document), Site())
    reporter, stop = ListReporter(), StopSignal(folder / "stop")
    stop.bind(ranks.any)
    with Watched(case.get("plant")) as watched:
        task = watched.wrap(select_task(spec), ranks.rank)
        trainer = Trainer(spec, task, ranks, reporter=reporter, stop=stop, checkpoints=NoCheckpoints())
        error = None
        try:
            module = trainer.run().module
        except TrainingError as raised:
            module, error = trainer._model.module, str(raised)
    return {
        "series": reporter.said,
        "examples": watched.examples,
        "scales": watched.scales,
        "error": error,
        "parameters": {name: value.flatten().tolist() for name, value in module.state_dict().items()},
    }


def main():
    cases = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    ranks = distributed.join("gloo")
    found = {name: train(case, ranks, folder) for name, case in cases.items()}
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found))
    ranks.barrier()
    distributed.leave()
    os._exit(0)


main()
