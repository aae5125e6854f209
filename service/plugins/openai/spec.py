"""The spec of a fine-tuning job. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any, Literal, TypeGuard

from service.core.errors import InvalidRequestError
from service.db.models import DataFile
from service.plugins.openai.base_models import BaseModelEntry
from service.plugins.openai.errors import administrators_problems
from service.plugins.openai.requests import CreateJob, DpoHyperparameters, SupervisedHyperparameters
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.text_sources import PAIR_FORMATS
from trainyard.contract.spec.training_spec import parse_spec

_TARGET_EPOCHS = 3
_MIN_EXAMPLES, _MAX_EXAMPLES = 100, 25_000
"""Examples of all epochs together between which the target holds."""
_MAX_EPOCHS = 25
_BATCH_FRACTION = 0.002
_MAX_BATCH = 256
_DEFAULT_BETA = 0.1
_EVALUATIONS_PER_EPOCH = 4
_MAX_NAME = 120
_USUAL_MULTIPLIERS, _USUAL_BETAS = (0.01, 10.0), (0.01, 2.0)

Auto = Literal["auto"]


@dataclass(frozen=True)
class Hyperparameters:
    """The values of a job."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float
    beta: float

    @property
    def supervised(self) -> dict[str, int | float]:
        """The values of a supervised job, as OpenAI's API names them."""
        return {
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
        }

    @property
    def dpo(self) -> dict[str, int | float]:
        return {**self.supervised, "beta": self.beta}


def choose_epochs(requested: Auto | int | None, examples: int) -> int:
    """Return the number of epochs. `auto` is 3, more for a small file and fewer for a large file.

    With fewer than 34 examples, as many as give 100 examples in all, at most 25; with more than 8,333, as many as give
    25,000, at least 1.
    """
    if isinstance(requested, int):
        return requested
    if examples * _TARGET_EPOCHS < _MIN_EXAMPLES:
        return min(_MAX_EPOCHS, ceil(_MIN_EXAMPLES / examples))
    if examples * _TARGET_EPOCHS > _MAX_EXAMPLES:
        return max(1, _MAX_EXAMPLES // examples)
    return _TARGET_EPOCHS


def choose_batch_size(requested: Auto | int | None, examples: int, gpus: int) -> int:
    """Return the number of examples in a batch. `auto` is 0.2 % of the file, at least one for each GPU, at most 256."""
    if isinstance(requested, int):
        return requested
    return min(max(round(examples * _BATCH_FRACTION), gpus, 1), max(_MAX_BATCH, gpus))


def choose_multiplier(requested: Auto | float | None) -> float:
    """Return the factor of the model's learning rate; `auto` is 1."""
    return 1.0 if requested is None or isinstance(requested, str) else float(requested)


def choose_beta(requested: Auto | float | None) -> float:
    """Return `beta` of DPO; `auto` is 0.1."""
    return _DEFAULT_BETA if requested is None or isinstance(requested, str) else float(requested)


@dataclass(frozen=True)
class FineTuneRequest:
    """A request with everything that it names."""

    body: CreateJob
    entry: BaseModelEntry
    training: DataFile
    validation: DataFile | None
    seed: int
    origin: str | None
    """The job whose model is tuned further, as `resume_from` of a spec; None: the base model."""

    @property
    def is_dpo(self) -> bool:
        return self.body.method is not None and self.body.method.type == "dpo"

    @property
    def section(self) -> str:
        """Where the request has its hyperparameters."""
        method = self.body.method
        return "hyperparameters" if method is None else f"method.{method.type}.hyperparameters"

    @property
    def gpus(self) -> int:
        value = self.entry.spec.get("gpus", 1)
        return value if isinstance(value, int) else 1


def check_request(body: CreateJob) -> None:
    """Check the rules that the types of the fields do not express.

    Raises:
        InvalidRequestError: The request asks for an unsupported feature, or contradicts itself.
    """
    if body.integrations:
        message = "are not supported; MLflow's and TensorBoard's clients can read the job instead (docs/programs.md)"
        raise InvalidRequestError(message, param="integrations", code="unsupported")
    method = body.method
    if method is None:
        return
    if method.type == "reinforcement":
        message = "is `reinforcement`, which is not supported; use `supervised` or `dpo`"
        raise InvalidRequestError(message, param="method.type", code="unsupported")
    if body.hyperparameters is not None:
        message = "cannot be combined with `method`; put them into `method." + method.type + ".hyperparameters`"
        raise InvalidRequestError(message, param="hyperparameters")
    other = "dpo" if method.type == "supervised" else "supervised"
    if getattr(method, other) is not None:
        raise InvalidRequestError(f"does not belong to the method `{method.type}`", param=f"method.{other}")


def choose_hyperparameters(request: FineTuneRequest) -> Hyperparameters:
    """Return the hyperparameters, with values for each `auto`.

    Raises:
        InvalidRequestError: They exceed a limit of the model, or the format of a file does not fit the method.
    """
    body, examples = request.body, request.training.examples
    given: SupervisedHyperparameters | None = body.hyperparameters
    if body.method is not None:
        section = body.method.dpo if request.is_dpo else body.method.supervised
        given = section.hyperparameters if section is not None else None
    given = given or SupervisedHyperparameters()
    _check_formats(request)
    chosen = Hyperparameters(
        n_epochs=choose_epochs(given.n_epochs, examples),
        batch_size=choose_batch_size(given.batch_size, examples, request.gpus),
        learning_rate_multiplier=choose_multiplier(given.learning_rate_multiplier),
        beta=choose_beta(given.beta if isinstance(given, DpoHyperparameters) else None),
    )
    _check_limits(request, chosen)
    return chosen


def _check_limits(request: FineTuneRequest, chosen: Hyperparameters) -> None:
    limits, epochs, examples = request.entry.limits, chosen.n_epochs, request.training.examples
    in_all = epochs * examples
    product = f"{epochs} epochs of {examples} examples are {in_all} examples"
    for field, value, limit, given in (
        ("training_file", examples, limits.examples, f"the file has {examples} examples"),
        (f"{request.section}.n_epochs", epochs, limits.epochs, f"the job has {epochs} epochs"),
        (f"{request.section}.n_epochs", in_all, limits.examples_times_epochs, product),
    ):
        if limit is not None and value > limit:
            message = f"{given}; model {request.body.model} takes at most {limit}"
            raise InvalidRequestError(message, param=field, code="limit_exceeded")


def unusual_values(request: FineTuneRequest, chosen: Hyperparameters) -> list[str]:
    """Return warnings about hyperparameters that are rarely intended."""
    least, most = _USUAL_MULTIPLIERS
    factor, warnings = chosen.learning_rate_multiplier, []
    if not least <= factor <= most:
        rate = request.entry.base_learning_rate(preference=request.is_dpo) * factor
        warnings.append(
            f"learning_rate_multiplier {factor:g} gives a learning rate of {rate:.3g}; usual multipliers are from "
            f"{least:g} to {most:g}"
        )
    least, most = _USUAL_BETAS
    if request.is_dpo and not least <= chosen.beta <= most:
        warnings.append(f"beta {chosen.beta:g} is unusual; most jobs have one from {least:g} to {most:g}")
    return warnings


def _check_formats(request: FineTuneRequest) -> None:
    files = {"training_file": request.training, "validation_file": request.validation}
    for param, file in files.items():
        if file is None:
            continue
        has_pairs = file.format in PAIR_FORMATS
        if request.is_dpo != has_pairs or file.format == "unpaired_preference":
            needs = "preferences, for the method `dpo`" if has_pairs else f"the format `{file.format}`"
            expected = "dpo, whose lines have `input`, `preferred_output` and `non_preferred_output`"
            method = expected if request.is_dpo else "supervised, whose lines have `messages`"
            message = f"has {needs}, and the method of this job is {method}"
            raise InvalidRequestError(message, param=param, code="invalid_file_format")


def method_document(request: FineTuneRequest, chosen: Hyperparameters) -> dict[str, Any]:
    """Return OpenAI's `method` with the chosen values."""
    if request.is_dpo:
        return {"type": "dpo", "dpo": {"hyperparameters": chosen.dpo}}
    return {"type": "supervised", "supervised": {"hyperparameters": chosen.supervised}}


def spec_document(request: FineTuneRequest, chosen: Hyperparameters) -> dict[str, Any]:
    """Return the spec: defaults, then the administrator's fields, then the request's fields."""
    steps = max(1, ceil(request.training.examples / chosen.batch_size))
    body, entry = request.body, request.entry
    defaults: dict[str, Any] = {
        "precision": "auto",
        "strategy": "auto",
        "gpus": 1,
        "schedule": {"name": "linear"},
        "checkpoint": {"every_steps": steps, "keep_last": 3},
        "log": {"every_steps": 1},
    }
    if request.validation is not None:
        defaults["evaluation"] = {"every_steps": max(1, steps // _EVALUATIONS_PER_EPOCH)}
    rate = entry.base_learning_rate(preference=request.is_dpo) * chosen.learning_rate_multiplier
    data: dict[str, Any] = {"source": "file", "id": request.training.id, "packing": False}
    if request.validation is not None:
        data["eval_id"] = request.validation.id
    fixed: dict[str, Any] = {
        "version": 1,
        "name": f"{body.model}:{body.suffix}"[:_MAX_NAME] if body.suffix else body.model[:_MAX_NAME],
        "task": "causal_lm",
        "model": {"source": "hf", "path": entry.path},
        "data": data,
        "epochs": chosen.n_epochs,
        "batch": {"size": chosen.batch_size},
        "optimizer": {"lr": rate},
        "seed": request.seed,
        "metadata": dict(body.metadata or {}),
    }
    if request.is_dpo:
        fixed |= {"objective": "dpo", "preference": {"beta": chosen.beta}}
        del data["packing"]
    if request.origin is not None:
        # Not its state: the optimizer and the position belong to the data of that job.
        fixed |= {"resume_from": request.origin, "resume": "weights"}
    document = _merge(_merge(defaults, entry.spec), fixed)
    document.pop("steps", None)
    micro_size = document["batch"].get("micro_size")
    if isinstance(micro_size, int):
        # The administrator's value is for large batches, and the batch of a small file has one example.
        document["batch"]["micro_size"] = min(micro_size, chosen.batch_size)
    if request.validation is not None:
        _align_evaluations(document)
    return document


def entry_problems(entry: BaseModelEntry) -> list[Problem]:
    """Return the problems of an entry's fields of a spec that do not depend on the request or the site."""
    file = DataFile(id=f"file_{'0' * 26}", format="chat", examples=1000)
    body = CreateJob(model="model", training_file=file.id)
    request = FineTuneRequest(body, entry, file, None, seed=0, origin=None)
    chosen = Hyperparameters(1, 8 * request.gpus, 1.0, 0.1)
    try:
        parse_spec(spec_document(request, chosen))
    except SpecError as error:
        return administrators_problems(error.problems)
    return []


def _align_evaluations(document: dict[str, Any]) -> None:
    """Make an evaluation fall on the step of each checkpoint, so that the checkpoint states its metrics."""
    sections = (document["evaluation"], document["checkpoint"])
    requested, saves = (section.get("every_steps") if isinstance(section, dict) else None for section in sections)
    if _is_interval(saves) and (requested is None or _is_interval(requested)) and isinstance(sections[0], dict):
        sections[0]["every_steps"] = evaluation_interval(requested or saves, saves)


def _is_interval(value: Any) -> TypeGuard[int]:
    """Return whether a value of the administrator's file is a number of steps; others are refused with the spec."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def evaluation_interval(requested: int, saves: int) -> int:
    """Return the divisor of the steps between checkpoints, `saves`, whose ratio to `requested` is the least.

    If two divisors have equal ratios, the larger divisor is returned, which evaluates less.
    """
    small = [number for number in range(1, isqrt(saves) + 1) if saves % number == 0]
    divisors = {*small, *(saves // number for number in small)}
    return min(divisors, key=lambda number: (max(number / requested, requested / number), -number))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the values of both; two mappings under a name are merged, otherwise the second value
    counts."""
    merged = dict(under)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both else value
    return merged
