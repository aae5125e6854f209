"""Proposals by Optuna, in a process of its own: it is imported there alone, and a slow model delays nobody.

Optuna keeps nothing: each call rebuilds the study from the trials of the database, with a seed of its own. So the same
trials always give the same proposal, whichever process asks.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from service.plugins.sweeps.search.decide import Trial
from service.plugins.sweeps.search.plan import SearchPlan
from trainyard.contract.wire.search import Choice, IntRange, grid_points, is_active

if TYPE_CHECKING:
    import optuna

_DIGITS = 6
"""Significant digits of a proposed number, so that it can be read and typed."""
_MIN_RESULTS = 10
"""Results below which the importance of fields says nothing."""


def propose(plan: SearchPlan, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the values of the next trial."""
    number = len(trials)
    if plan.search.algorithm == "grid":
        return grid_points(plan.search.space)[number]
    from optuna.samplers import BaseSampler, RandomSampler, TPESampler

    is_random = plan.search.algorithm == "random" or (
        plan.search.algorithm in ("asha", "hyperband") and plan.search.sampler == "random"
    )
    seed = plan.seed_of(number)
    sampler: BaseSampler = RandomSampler(seed) if is_random else TPESampler(seed=seed, constant_liar=True)
    trial = _study(plan, trials, sampler).ask()
    values: dict[str, Any] = {}
    for path, one in plan.search.space.items():
        if not is_active(one, values):
            continue
        if isinstance(one, Choice):
            values[path] = one.values[trial.suggest_categorical(path, range(len(one.values)))]
        elif isinstance(one, IntRange):
            values[path] = trial.suggest_int(path, one.low, one.high, log=one.log)
        else:
            drawn = float(f"{trial.suggest_float(path, one.low, one.high, log=one.log):.{_DIGITS}g}")
            values[path] = min(max(drawn, one.low), one.high)
    return values


def importance(plan: SearchPlan, trials: Sequence[Trial]) -> dict[str, float]:
    """Return each field's share of the difference between the best tenth of the trials and all; empty for few results.

    PED-ANOVA (Watanabe et al. 2023) needs NumPy alone; Optuna's fANOVA needs scikit-learn and fits forests.
    """
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.samplers import RandomSampler

    study = _study(plan, [_at_common_rung(plan, trial, trials) for trial in trials], RandomSampler(0))
    done = study.get_trials(deepcopy=False, states=(_states().COMPLETE,))
    varied = [path for path in plan.search.space if len({one.params.get(path) for one in done}) > 1]
    if len(done) < _MIN_RESULTS or not varied:
        return {}
    shares = PedAnovaImportanceEvaluator().evaluate(study, params=varied)
    total = sum(shares.values())
    if not (total > 0 and math.isfinite(total)):
        return {}
    return {path: round(share / total, 4) for path, share in shares.items()}


def _at_common_rung(plan: SearchPlan, trial: Trial, trials: Sequence[Trial]) -> Trial:
    """Return the trial as if it had ended at the rung that most trials have reached, where they can be compared."""
    if not plan.rung_steps:
        return trial
    counts = {rung: sum(one.results.get(rung) is not None for one in trials) for rung in plan.rung_steps}
    rung = max(counts, key=lambda step: (counts[step], step))
    value = trial.results.get(rung)
    status = "succeeded" if value is not None else None
    return replace(trial, status=status, reason=None, value=value, results={})


def _study(plan: SearchPlan, trials: Sequence[Trial], sampler: "optuna.samplers.BaseSampler") -> "optuna.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if plan.mode == "max" else "minimize", sampler=sampler)
    values = [value for trial in trials if trial.status == "succeeded" and (value := trial.value) is not None]
    worst = max(values, key=lambda value: plan.sign * value) if values else None
    study.add_trials([_frozen(plan, trial, worst) for trial in trials])
    return study


def _frozen(plan: SearchPlan, trial: Trial, worst: float | None) -> "optuna.trial.FrozenTrial":
    """Return a trial for Optuna. A trial whose values made it fail counts as the worst; a lost trial does not."""
    from optuna.trial import create_trial

    states = _states()
    state, value = states.FAIL, None
    if trial.status == "succeeded" and trial.value is not None:
        state, value = states.COMPLETE, trial.value
    elif (trial.has_failed or trial.status == "succeeded") and worst is not None:
        state, value = states.COMPLETE, worst
    elif trial.paused_at is not None or trial.reason == "stopped_early":
        state = states.PRUNED
    elif trial.is_active or trial.status == "paused":
        state = states.RUNNING
    params: dict[str, Any] = {}
    for path, one in plan.search.space.items():
        if path in trial.values:
            value_of = trial.values[path]
            params[path] = _index(one, value_of) if isinstance(one, Choice) else value_of
    known = {rung: result for rung, result in trial.results.items() if result is not None}
    return create_trial(
        state=state,
        value=value,
        params=params,
        distributions={path: _distribution(plan.search.space[path]) for path in params},
        intermediate_values=known,
    )


def _distribution(given: Any) -> "optuna.distributions.BaseDistribution":
    from optuna import distributions

    if isinstance(given, Choice):
        return distributions.CategoricalDistribution(range(len(given.values)))
    if isinstance(given, IntRange):
        return distributions.IntDistribution(given.low, given.high, log=given.log)
    return distributions.FloatDistribution(given.low, given.high, log=given.log)


def _index(given: Choice, value: object) -> int:
    """Return the position of a value; Optuna's own categories hold only numbers and text."""
    texts = [json.dumps(one, sort_keys=True) for one in given.values]
    return texts.index(json.dumps(value, sort_keys=True))


def _states() -> type["optuna.trial.TrialState"]:
    from optuna.trial import TrialState

    return TrialState
