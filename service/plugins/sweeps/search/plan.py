"""The fixed parts of a search from its submission: its metric, its rungs and its limits. Pure functions."""

import hashlib
import math
from typing import Literal

from pydantic import BaseModel, ConfigDict

from service.checkpoints.ranking import best_criterion
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.search import MAX_RUNGS, RUNG_ALGORITHMS, Search

_RUNG_FRACTION = 27
"""The first rung is at this part of the steps, unless `min_steps` names another."""
_FIXED_FIELDS = ("steps", "epochs", "evaluation", "resume_from")
"""Fields that decide where rungs are, or from which checkpoint a trial starts."""


class SearchPlan(BaseModel):
    """The search with all that was derived from the spec."""

    model_config = ConfigDict(frozen=True)

    search: Search
    metric: str
    mode: Literal["min", "max"]
    max_parallel: int
    rung_steps: tuple[int, ...] = ()
    """For `asha` and `hyperband`: the steps at which trials are paused, ascending, all before the last step."""

    @property
    def sign(self) -> float:
        """The factor that makes smaller values better."""
        return -1.0 if self.mode == "max" else 1.0

    @property
    def trials(self) -> int:
        """The number of trials."""
        return self.search.trial_limit

    def seed_of(self, number: int) -> int:
        """Return the seed from which a trial is drawn."""
        digest = hashlib.sha256(f"{self.search.seed}:{number}".encode()).digest()
        return int.from_bytes(digest[:4], "little")

    def bracket_of(self, number: int) -> int:
        """Return the first rung at which a trial is compared; `len(rung_steps)` if it never is.

        Hyperband gives each bracket about the same number of steps: `n_s = (s_max + 1) / (s + 1) * eta^s` trials of
        bracket `s` (Li et al. 2018, algorithm 1). Each trial goes to the bracket that is furthest behind its share.
        """
        if self.search.algorithm != "hyperband":
            return 0
        last = len(self.rung_steps)
        shares = [(last + 1) / (last - first + 1) * self.search.eta ** (last - first) for first in range(last + 1)]
        counts = [0] * (last + 1)
        for total in range(number + 1):
            behind = [share / sum(shares) * (total + 1) - count for share, count in zip(shares, counts, strict=True)]
            bracket = behind.index(max(behind))
            counts[bracket] += 1
        return bracket

    def first_pause(self, bracket: int) -> int | None:
        """Return the first step at which a trial pauses; None: it runs to the end."""
        return self.rung_steps[bracket] if bracket < len(self.rung_steps) else None

    def next_pause(self, step: int) -> int | None:
        """Return the rung after a rung; None: the trial then runs to the end."""
        return next((rung for rung in self.rung_steps if rung > step), None)


def plan_search(search: Search, spec: TrainingSpec, max_parallel: int) -> SearchPlan:
    """Return the plan of a search over a spec. Raises SpecError: the algorithm cannot search over the spec."""
    criterion = best_criterion(dump_spec(spec)["checkpoint"]["keep_best"])
    metric = search.metric or criterion.metric
    mode = search.mode or (criterion.mode if metric == criterion.metric else "min")
    rungs = _rungs(search, spec, metric) if search.algorithm in RUNG_ALGORITHMS else ()
    return SearchPlan(search=search, metric=metric, mode=mode, max_parallel=max_parallel, rung_steps=rungs)


def _rungs(search: Search, spec: TrainingSpec, metric: str) -> tuple[int, ...]:
    if not spec.task_kind.in_loop:
        message = f"cannot pause task `{spec.task}` at a step, which has its own loop; use `tpe`"
        raise SpecError([Problem(param="search.algorithm", message=message)])
    if spec.steps is None:
        message = f"`{search.algorithm}` needs the number of steps; set `steps` in place of `epochs`"
        raise SpecError([Problem(param="spec.steps", message=message)])
    for path in search.space:
        if path.split(".")[0] in _FIXED_FIELDS:
            message = f"cannot be searched by `{search.algorithm}`, whose trials are compared at the same steps"
            raise SpecError([Problem(param=f"search.space.{path}", message=message)])
    every = spec.evaluation.every_steps if metric.startswith("eval/") else spec.log.every_steps
    if every is None:
        message = f"`{search.algorithm}` compares `{metric}` during the run; set `evaluation.every_steps`"
        raise SpecError([Problem(param="spec.evaluation.every_steps", message=message)])
    first = search.min_steps or max(1, spec.steps // _RUNG_FRACTION)
    rungs = rung_steps(first, spec.steps, search.eta, every)
    if not rungs:
        message = (
            f"the first rung is at step {first}, rounded up to a step with `{metric}`; a run of {spec.steps} steps has "
            "none before its end"
        )
        raise SpecError([Problem(param="search.min_steps", message=message)])
    return rungs


def rung_steps(first: int, total: int, eta: int, every: int) -> tuple[int, ...]:
    """Return the rungs `first * eta^k` before the last step, each rounded up to a multiple of `every`."""
    steps = (math.ceil(first * eta**k / every) * every for k in range(MAX_RUNGS))
    return tuple(sorted({step for step in steps if step < total}))
