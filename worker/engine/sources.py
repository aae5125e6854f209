"""Digests of a run's inputs that its checkpoints do not hold: the frozen base, the examples, their order."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.checkpoint.compatibility import STORED
from worker.data.examples import Examples
from worker.data.model_files import ModelFiles
from worker.data.sampler import GlobalBatches, digest
from worker.data.stored_rows import StoredExamples
from worker.engine.initial_adapter import open_adapter
from worker.tasks.base import Task, answers_of
from worker.tasks.hf_slices import weight_files

_SAMPLES, _SAMPLE_BYTES = 256, 2**14
"""Parts of a file of weights that are compared, evenly spaced, and the bytes of each."""


def source_digests(
    spec: TrainingSpec,
    task: Task,
    batches: GlobalBatches,
    *,
    origin: str = "",
    roots: AllowedRoots = UNRESTRICTED_ROOTS,
) -> dict[str, str]:
    """Return the digests by the names of the spec's fields, and the digest of a reference model.

    A `custom` task may make other examples at every start. `origin`: see `initial_model_digest`.
    """
    digests = {"data.shuffle": digest(batches.at(0))}
    if not spec.task_kind.has_own_code:
        digests["data"] = _digest_of_examples(task.examples)
    if (base := base_digest(spec, roots)) is not None:
        digests["model.path"] = base
    if task.needs_reference:
        digests["reference"] = initial_model_digest(spec, origin, roots)
    return digests


def initial_model_digest(spec: TrainingSpec, origin: str, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> str:
    """Return the digest of all inputs that determine the model before its first step.

    Args:
        origin: The checkpoint of another job whose weights the run starts from; else empty.
    """
    model = spec.model
    if isinstance(model, HfModel):
        weights = _digest_of_model(model.path, roots)
    else:
        weights = f"{spec.seed} {model.model_dump_json() if model else ''}"
    adapter = _digest_of_adapter(Path(spec.lora.adapter), roots) if spec.lora.adapter else ""
    text = "\n".join((weights, spec.lora.base_dtype, adapter, origin))
    return hashlib.sha256(text.encode()).hexdigest()


def reference_digest(spec: TrainingSpec, task: Task, origin: str, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> str:
    """Return the digest of the inputs of the reference's log-probabilities: the initial model, all examples, and the
    precision of the computation."""
    answers = answers_of(task)
    examples = _digest_of_arrays(answers.digest_arrays(len(answers.desirable)))
    text = "\n".join((initial_model_digest(spec, origin, roots), examples, spec.precision, spec.param_dtype))
    return hashlib.sha256(text.encode()).hexdigest()


def base_digest(spec: TrainingSpec, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> str | None:
    """Return the digest of the folder of the frozen base model; None if the run has none."""
    if isinstance(spec.model, HfModel) and (spec.lora_rank is not None or spec.trainable is not None):
        return _digest_of_model(spec.model.path, roots)
    return None


def _digest_of_examples(examples: Examples) -> str:
    """Return the digest of all training examples."""
    if isinstance(examples, StoredExamples):
        return f"{STORED}{examples.digest}"
    return _digest_of_arrays(examples.digest_arrays())


def _digest_of_arrays(arrays: Sequence[NDArray[Any]]) -> str:
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def _digest_of_adapter(folder: Path, roots: AllowedRoots) -> str:
    hashed = hashlib.sha256()
    with open_adapter(folder, roots) as files:
        for file in files:
            hashed.update(file.read())
    return hashed.hexdigest()


def _digest_of_model(path: str, roots: AllowedRoots) -> str:
    files = ModelFiles(path, roots)
    return folder_digest(files.folder)


def folder_digest(folder: Path) -> str:
    """Return the digest of a model's configuration and of its weights: their sizes and evenly spaced parts.

    Reading all would take minutes for a large model, and training a model changes nearly every part.
    """
    hashed = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weight_files(folder):
        size = path.stat().st_size
        hashed.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in sorted({size * number // _SAMPLES for number in range(_SAMPLES)}):
                file.seek(start)
                hashed.update(file.read(_SAMPLE_BYTES))
    return hashed.hexdigest()
