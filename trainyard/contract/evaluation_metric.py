"""Selects the evaluation metric of a job, and the better of two values of a metric. Pure functions."""

import re
from collections.abc import Collection, Mapping
from typing import Any

HIGHER_IS_BETTER = (
    *("acc", "accuracy", "auc", "bleu", "f1", "map", "mfu", "ndcg", "precision", "psnr", "r2", "recall", "reward"),
    *("return", "rouge", "score", "ssim", "success", "throughput", "win_rate"),
)
_LOWER_IS_BETTER = frozenset({"loss", "error", "perplexity", "ppl", "mae", "mse", "rmse", "wer", "cer"})
_EVALUATION = frozenset({"eval", "evaluation", "val", "valid", "validation", "dev", "test"})
_SEPARATORS = re.compile(r"[\s/\-.@]+|(?<=[a-z])(?=[A-Z])")


def is_higher_better(metric: str) -> bool:
    """Return whether the best value of a metric is its largest, by the words of its name: `eval/accuracy`.

    `metric_direction.js` has the same rule for the pages.
    """
    parts = _parts(metric)
    return parts.isdisjoint({"loss", "error"}) and not parts.isdisjoint(HIGHER_IS_BETTER)


def choose_evaluation(names: Collection[str], spec: Mapping[str, Any]) -> str | None:
    """Return the metric that tells how good a job is; None if its evaluations have reported none.

    The metric of early stopping or of the best checkpoint comes first, if the spec names it. Otherwise an accuracy,
    another score or a loss is chosen, in this order, whose name has a word of an evaluation, such as `eval` or `val`;
    the shortest name wins.
    """
    checkpoint = spec.get("checkpoint") or {}
    for section in (spec.get("early_stopping"), checkpoint.get("keep_best")):
        chosen = (section or {}).get("metric")
        if isinstance(chosen, str) and chosen in names and _is_evaluation(chosen):
            return chosen
    return min(filter(_is_evaluation, names), key=_rank, default=None)


def _is_evaluation(name: str) -> bool:
    parts = _parts(name)
    return not parts.isdisjoint(_EVALUATION) and not parts.isdisjoint({*HIGHER_IS_BETTER, *_LOWER_IS_BETTER})


def _rank(name: str) -> tuple[bool, bool, bool, int, int, str]:
    parts = _parts(name)
    is_accuracy = not parts.isdisjoint({"acc", "accuracy"})
    return "test" in parts, not is_accuracy, not is_higher_better(name), name.count("/"), len(name), name


def _parts(name: str) -> set[str]:
    tokens = _SEPARATORS.split(name)
    return {part for token in tokens for part in (token.lower(), *token.lower().split("_"))}
