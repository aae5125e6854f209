"""Loads models in Hugging Face form: whole models, adapters and trained tensors on a base. Never unpickles."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.wire.exported import CLASSES, ExportNote
from trainyard.loading.errors import LoadError
from worker.data.parsed_records import padding_of
from worker.engine.sources import folder_digest
from worker.tasks.hf_classifier import class_settings
from worker.tasks.hf_embedding import without_pooler

OFFLINE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
IMAGES = "ForImageClassification"
"""The end of the names of models that classify images."""
TEXT_CLASSES = "ForSequenceClassification"
"""The end of the names of models that classify texts."""
_LOADERS = (TEXT_CLASSES, IMAGES)
"""The ends of the names of models that are loaded as such; others are causal language models."""


def architectures(folder: Path) -> tuple[str, ...]:
    """Return the names of the models that the configuration of a folder states. Raises LoadError: it cannot be read."""
    with translated(folder):
        config = json.loads((folder / "config.json").read_bytes())
        names = config.get("architectures") or () if isinstance(config, dict) else ()
        return tuple(map(str, names))


def reads_images(folder: Path) -> bool:
    """Return whether the model of a folder classifies images."""
    return any(name.endswith(IMAGES) for name in architectures(folder))


def load_whole(folder: Path, dtype: Any) -> Any:
    """Return the model of a Hugging Face folder. `dtype` None: as in the files.

    Raises:
        LoadError: The folder has no safetensors, transformers refuses it, or it lacks weights of such a model.
    """
    import transformers

    require_files(folder, "*.safetensors")
    options = {**OFFLINE, "use_safetensors": True, "output_loading_info": True}
    with translated(folder), quiet():
        named = architectures(folder)
        ends = (end for end in _LOADERS if any(name.endswith(end) for name in named))
        loader = getattr(transformers, f"AutoModel{next(ends, 'ForCausalLM')}")
        model, report = loader.from_pretrained(folder, dtype=dtype or "auto", **options)
    if missing := sorted(report["missing_keys"]):
        # transformers would draw them at random.
        raise LoadError(
            f"{folder} holds {' and '.join(named) or 'another model'}, which lacks weights of {type(model).__name__}, "
            f"such as {missing[0]}; load it with transformers"
        )
    return model


def load_body(folder: Path, dtype: Any) -> Any:
    """Return the model of a Hugging Face folder without a head. Arguments and errors: see `load_whole`."""
    from transformers import AutoModel

    require_files(folder, "*.safetensors")
    options = {**OFFLINE, "use_safetensors": True, "output_loading_info": True}
    with translated(folder), quiet():
        body, report = AutoModel.from_pretrained(folder, dtype=dtype or "auto", **options)
    without_pooler(body)
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith("pooler.")):
        raise LoadError(f"{folder} lacks weights that its config.json names, such as {missing[0]}")
    return body


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out the report of transformers, which takes the absence of a layer that is not used for a problem."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder. Raises LoadError: transformers refuses it."""
    from transformers import AutoTokenizer

    with translated(folder):
        return AutoTokenizer.from_pretrained(folder, **OFFLINE)


def load_on_base(folder: Path, note: ExportNote, base: Path, dtype: Any) -> Any:
    """Return the base model with the adapters or the trained tensors of an export.

    Raises:
        LoadError: The base differs from the base of the training, or does not fit.
    """
    check_base(note, base)
    model = load_headed(base, note.task, folder, dtype) if task_kind(note.task).classifies else load_whole(base, dtype)
    if note.kind == "trained":
        with translated(folder):
            keys = model.load_state_dict(load_file(folder / "trained.safetensors"), strict=False)
        if keys.unexpected_keys:
            raise LoadError(f"trained.safetensors does not fit the model in {base}: it has {keys.unexpected_keys[0]}")
        return model
    return add_adapters(model, folder)


def check_base(note: ExportNote, base: Path) -> None:
    """Raise LoadError unless a folder holds the base model of an export's training."""
    if note.base_digest is not None and folder_digest(base) != note.base_digest:
        raise LoadError(
            f"the model in {base} is not the base model of the training; name an unchanged copy of it with base="
        )


def load_headed(base: Path, task: str, folder: Path, dtype: Any) -> Any:
    """Return a base model with a head for the classes of an export, whose weights are a part of the adapters.

    Args:
        task: A task that classifies.
        folder: The export, with the names of the classes and the tokenizer.

    Raises:
        LoadError: The folder has no names, or transformers refuses the model.
    """
    import transformers

    require_files(base, "*.safetensors")
    with translated(folder):
        settings = class_settings([str(name) for name in json.loads((folder / CLASSES).read_bytes())])
    options = {**OFFLINE, **settings, "use_safetensors": True, "ignore_mismatched_sizes": True}
    with translated(base), quiet():
        loader = getattr(transformers, task_kind(task).transformers_class)
        model = loader.from_pretrained(base, dtype=dtype or "auto", **options)
    if task_kind(task).reads_texts:
        model.config.pad_token_id = padding_of(load_tokenizer(folder))
    return model


def add_adapters(model: Any, folder: Path) -> Any:
    """Return a model with the adapters of a folder.

    Raises:
        LoadError: The folder has no safetensors, peft refuses it, or it has no values for adapters of this model.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise LoadError(f"adapters need peft ({error}); install it with: pip install 'trainyard[worker,hf]'") from None
    # Without it, peft would look for a pickle.
    require_files(folder, "adapter_model.safetensors")
    with translated(folder), warnings.catch_warnings():
        # peft would leave missing adapters newly initialized, and only warn.
        warnings.filterwarnings("error", message=".*missing adapter keys", category=UserWarning)
        try:
            return PeftModel.from_pretrained(model, str(folder))
        except UserWarning:
            raise LoadError(
                f"the adapters in {folder} are of another model than {type(model).__name__}, whose layers have other "
                "names; name their base model with base="
            ) from None


def require_files(folder: Path, pattern: str) -> None:
    """Raise LoadError: a folder has no file of a pattern."""
    if not any(folder.glob(pattern)):
        raise LoadError(f"{folder} has no {pattern}, and other kinds of files are not loaded")


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Translate the errors of transformers."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        raise LoadError(f"{folder} cannot be loaded: {type(error).__name__}: {error}") from error
