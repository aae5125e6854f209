"""GPU time that searches need to reach a loss: random search, TPE and ASHA on a recorded surface of real trainings.

The surface is recorded first: a small network is trained on made-up data for each learning rate and momentum of a
grid, with its loss after each number of steps. A search then proposes any values of the ranges; its trial reports the
curve of the nearest recorded training. The service's own proposals and decisions run (`service.sweeps.search`), with
four trials at once, and one step of one trial counts as one unit of GPU time.
"""

import argparse
import json
import math
import statistics
from dataclasses import replace
from typing import Any

import torch

from service.sweeps.search.decide import Trial, next_moves
from service.sweeps.search.plan import SearchPlan
from service.sweeps.search.sampling import propose
from trainyard.contract.wire.search import Search

STEPS = 81
RUNGS = (3, 9, 27)
PARALLEL = 4
MAX_TRIALS = 150
RATES = [10 ** (-5 + 5 * n / 40) for n in range(41)]
MOMENTA = [0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99]
SPACE = {"rate": "log:1e-5:1", "momentum": "uniform:0:0.99"}
METHODS: dict[str, dict[str, Any]] = {
    "random": {"algorithm": "random"},
    "tpe": {"algorithm": "tpe"},
    "asha": {"algorithm": "asha", "eta": 3},
}
Surface = dict[tuple[int, int], list[float]]


def record_surface() -> Surface:
    """Train every point of the grid; return the evaluation loss after each step."""
    torch.set_num_threads(1)
    return {(r, m): train(rate, momentum) for r, rate in enumerate(RATES) for m, momentum in enumerate(MOMENTA)}


def train(rate: float, momentum: float) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    inputs = torch.randn(256, 8, generator=generator)
    targets = torch.sin(inputs @ torch.randn(8, 4, generator=generator)).sum(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    losses = []
    for step in range(STEPS):
        rows = torch.arange(step * 32, step * 32 + 32) % 192
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(float(torch.nn.functional.mse_loss(model(inputs[192:]), targets[192:])))
    return losses


def curve_of(surface: Surface, values: dict[str, Any]) -> list[float]:
    rate = min(range(len(RATES)), key=lambda n: abs(math.log(RATES[n] / values["rate"])))
    momentum = min(range(len(MOMENTA)), key=lambda n: abs(MOMENTA[n] - values["momentum"]))
    return surface[rate, momentum]


def cost_to_reach(surface: Surface, method: dict[str, Any], seed: int, goal: float) -> int:
    """Return the steps of all trials until one that has trained to the end has a loss of at most `goal`."""
    search = Search.model_validate({**method, "space": SPACE, "max_trials": MAX_TRIALS, "seed": seed})
    rungs = RUNGS if method["algorithm"] == "asha" else ()
    plan = SearchPlan(search=search, metric="eval/loss", mode="min", max_parallel=PARALLEL, rung_steps=rungs)
    trials: list[Trial] = []
    spent = 0
    while True:
        moves = next_moves(plan, trials, 0.0)
        for number, rung in moves.record.items():
            trials[number] = replace(trials[number], results={**trials[number].results, rung: trials[number].value})
        for number, pause_at in moves.promote.items():
            trials[number] = replace(trials[number], status="running", desired="run", pause_at=pause_at)
        for _ in range(moves.proposals):
            values = propose(plan, trials)
            trials.append(Trial(len(trials), values, status="running", pause_at=plan.first_pause(0)))
        if moves.state != "running":
            return spent
        # The trial that ends first: all advance by as many steps.
        running = [trial for trial in trials if trial.status == "running"]
        ahead = min((trial.pause_at or STEPS) - trial.step for trial in running)
        for trial in running:
            spent += ahead
            step = trial.step + ahead
            loss = curve_of(surface, dict(trial.values))[step - 1]
            value = loss if math.isfinite(loss) else None
            status = "succeeded" if step == STEPS else "paused" if step == trial.pause_at else "running"
            desired = "paused" if status == "paused" else "run"
            trials[trial.number] = replace(trial, step=step, value=value, status=status, desired=desired)
            if step == STEPS and value is not None and value <= goal:
                return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.01, help="part of the surface that reaches the loss")
    options = parser.parse_args()
    surface = record_surface()
    finals = sorted(curve[-1] for curve in surface.values() if math.isfinite(curve[-1]))
    goal = finals[max(0, int(options.share * len(surface)) - 1)]
    print(f"{len(surface)} recorded trainings; best loss {finals[0]:.4f}, goal {goal:.4f}")
    medians = {}
    for name, method in METHODS.items():
        costs = [cost_to_reach(surface, method, seed, goal) for seed in range(options.seeds)]
        medians[name] = statistics.median(costs)
        print(f"{name:8} median {medians[name]:.0f} steps, from {min(costs)} to {max(costs)}")
    print(json.dumps({name: round(median / medians["random"], 3) for name, median in medians.items()}))


if __name__ == "__main__":
    main()
