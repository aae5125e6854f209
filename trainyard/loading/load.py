"""`trainyard.load`: the model of a job, a registered name or a folder, with its tokenizer or input transform."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.client import Client
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.model_input import ImageInput
from trainyard.contract.wire.export import ExportRequest
from trainyard.contract.wire.exported import ExportNote
from trainyard.loading.cache import discard
from trainyard.loading.errors import LoadError
from trainyard.loading.export_folder import read_note, verify_files
from trainyard.loading.references import fetch_source
from trainyard.loading.sources import Choice, find_folder, is_folder
from trainyard.loading.transforms import ImageTransform, VectorTransform

_ADAPTER_CONFIG = "adapter_config.json"


class LoadedModel(NamedTuple):
    """A model in evaluation mode, and its tokenizer or input transform."""

    model: Any
    """A `torch.nn.Module`; a language model is a model of transformers, with `generate`, and a model that embeds texts
    has `encode`."""
    tokenizer: Any
    """The tokenizer of a language model, else a `PictureTransform`, an `ImageTransform` or a `VectorTransform`."""


def load(
    source: str | Path,
    *,
    checkpoint: str | int | None = None,
    base: str | Path | None = None,
    dtype: Any = None,
    device: Any = "cpu",
    client: Client | None = None,
) -> LoadedModel:
    """Load a trained model and its tokenizer or input transform: `model, tokenizer = trainyard.load("my-run")`.

    Downloads are kept in the user's cache, verified by their digests. Nothing is unpickled, and no code of the job or
    of a model's folder is run. Needs `pip install 'trainyard[worker,hf]'`; `hf` for language models and adapters.

    Args:
        source: A job as in `Client.job`; a registered model, as `name`, `name@alias` or `name@version`; or the folder
            of an export or of a Hugging Face model, as a `Path` or as text with a `/`.
        checkpoint: `best`, `latest` or a step, of a job; default: the job's export.
        base: The folder of the base model of adapters on this machine, if it differs from the spec's.
        dtype: Type of the weights of a language model; default: as they are stored.
        device: Where the model is loaded to.
        client: The client for jobs and registered models; default: `Client()`.

    Raises:
        LoadError: The model cannot be found, verified or loaded; the message states why.
        TrainyardError: A request failed.
    """
    _require_packages("torch", "safetensors")
    chosen = Choice(None if checkpoint is None else str(checkpoint), None if base is None else Path(base).expanduser())
    if is_folder(source):
        folder = find_folder(source)
    elif client is not None:
        folder = fetch_source(client, str(source), chosen, _convert)
    else:
        with Client() as own:
            folder = fetch_source(own, str(source), chosen, _convert)
    return load_folder(folder, base=chosen.base, dtype=dtype, device=device)


def load_folder(folder: Path, *, base: Path | None = None, dtype: Any = None, device: Any = "cpu") -> LoadedModel:
    """Load the export in a folder, or a Hugging Face model. Arguments and errors: see `load`."""
    note = read_note(folder)
    if note is not None:
        _verify(folder, note)
    with own_random_state():
        loaded = _load_described(folder, note, base, dtype) if note else _load_undescribed(folder, base, dtype)
    return LoadedModel(loaded.model.to(device).eval(), loaded.tokenizer)


def _verify(folder: Path, note: ExportNote) -> None:
    try:
        verify_files(folder, note)
    except LoadError:
        discard(folder)
        raise


def _load_described(folder: Path, note: ExportNote, base: Path | None, dtype: Any) -> LoadedModel:
    if note.model is None:
        raise LoadError(
            "the model of a `custom` task is defined by the job's own code; build it and load the tensors of "
            f"{folder / 'model.safetensors'} with load_state_dict"
        )
    if note.kind == "adapter" or task_kind(note.task).reads_texts:
        _require_packages("transformers", *(["peft"] if note.kind == "adapter" else []))
    from trainyard.loading import builtin_models, language_models

    if note.model.get("source") == "hf":
        if note.vectors is not None:
            from trainyard.loading.text_embedder import load_embedder

            on = None
            if note.kind == "adapter":
                on = _base_folder(base, str(note.model.get("path")), note.kind)
                language_models.check_base(note, on)
            return LoadedModel(*load_embedder(folder, note.vectors, dtype, on))
        if task_kind(note.task).reads_images:
            _require_packages("transformers", "PIL")
            return _load_picture_model(folder, note, base, dtype)
        if note.kind == "model":
            return LoadedModel(language_models.load_whole(folder, dtype), language_models.load_tokenizer(folder))
        chosen = _base_folder(base, str(note.model.get("path")), note.kind)
        model = language_models.load_on_base(folder, note, chosen, dtype)
        with_tokenizer = folder if note.kind == "adapter" else chosen
        return LoadedModel(model, language_models.load_tokenizer(with_tokenizer))
    if note.input is not None:
        transform = ImageTransform(note.input) if isinstance(note.input, ImageInput) else VectorTransform(note.input)
        return LoadedModel(builtin_models.load_network(folder, note), transform)
    if note.kind == "model":
        return LoadedModel(language_models.load_whole(folder, dtype), language_models.load_tokenizer(folder))
    with builtin_models.write_completed(folder, note) as completed:
        whole = Path(completed)
        return LoadedModel(language_models.load_whole(whole, dtype), language_models.load_tokenizer(whole))


def _load_undescribed(folder: Path, base: Path | None, dtype: Any) -> LoadedModel:
    """Load a Hugging Face model or adapters that no job has exported."""
    if not any((folder / name).is_file() for name in ("config.json", _ADAPTER_CONFIG)):
        raise LoadError(f"{folder} has neither an export.json nor a config.json: it holds no model")
    _require_packages("transformers")
    from trainyard.loading import foreign_adapters, language_models

    if not (folder / _ADAPTER_CONFIG).is_file():
        if language_models.reads_images(folder):
            return _load_classifier(folder, dtype)
        return LoadedModel(language_models.load_whole(folder, dtype), language_models.load_tokenizer(folder))
    _require_packages("peft")
    named = foreign_adapters.base_of_adapters(folder)
    chosen = _base_folder(base, named, "adapter")
    model = foreign_adapters.load_foreign_adapters(folder, chosen, dtype)
    if language_models.reads_images(chosen):
        has_processor = (folder / "preprocessor_config.json").is_file()
        return _load_classifier(folder if has_processor else chosen, dtype, model)
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    return LoadedModel(model, language_models.load_tokenizer(folder if has_tokenizer else chosen))


def _load_picture_model(folder: Path, note: ExportNote, base: Path | None, dtype: Any) -> LoadedModel:
    from trainyard.loading import image_models, language_models

    model = None
    if note.kind == "adapter":
        assert note.model is not None
        chosen = _base_folder(base, str(note.model.get("path")), note.kind)
        model = language_models.load_on_base(folder, note, chosen, dtype)
    return LoadedModel(*image_models.load_classifier(folder, dtype, model))


def _load_classifier(folder: Path, dtype: Any, model: Any = None) -> LoadedModel:
    _require_packages("transformers", "PIL")
    from trainyard.loading import image_models

    return LoadedModel(*image_models.load_classifier(folder, dtype, model))


def _base_folder(given: Path | None, named: str, kind: str) -> Path:
    """Return the folder of the base model. Raises LoadError: this machine does not have it."""
    folder = given or Path(named)
    if (folder / "config.json").is_file():
        return folder
    what = "adapters" if kind == "adapter" else "trained tensors"
    where = f"{folder} has no config.json" if folder.is_dir() else f"there is no folder {folder} on this machine"
    raise LoadError(
        f"the export holds {what} of the base model {named}, and {where}; name a copy of the base model with base=, "
        "or export the whole model: trainyard export JOB --merge"
    )


def _convert(request: ExportRequest) -> None:
    from worker.core.errors import RefusedError
    from worker.export.checkpoint import export_checkpoint

    try:
        with own_random_state():
            export_checkpoint(request, lambda update: None)
    except RefusedError as error:
        raise LoadError(f"{error}. {error.hint}".replace("--base", "base=").removesuffix(". ")) from None


def _require_packages(*names: str) -> None:
    if missing := [name for name in names if find_spec(name) is None]:
        raise LoadError(
            f"loading this model needs {', '.join(missing)}; install what is missing with: "
            "pip install 'trainyard[worker,hf]'"
        )


@contextmanager
def own_random_state() -> Iterator[None]:
    """Restore the state of all random generators at the end of the block, which may seed them."""
    import torch

    from worker.core.random_state import capture_random_state, restore_random_state

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = capture_random_state(device)
    try:
        yield
    finally:
        restore_random_state(before, device)
