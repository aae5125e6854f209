"""Reads parts of a Hugging Face model's tensors from its safetensors files, instead of loading the whole model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from worker.core.errors import is_out_of_memory
from worker.data.model_files import INDEX, ModelFiles
from worker.deferred.model import Destination, Files
from worker.deferred.recording import CannotDeferError, DeferredTensor, Recording, StorageKey
from worker.deferred.streaming import stream_values
from worker.tasks.hf_forward import ModelTraits, read_traits_at_once, set_forward

_FILE = "model.safetensors"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_RECOMPUTED = ".rotary_emb.inv_freq"
"""The end of the names of tensors that old files hold and models compute."""
_RENAMED = ("gamma", "beta", "weight_g", "weight_v")
"""Ends of names that transformers replaces when it loads them."""


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a safetensors file."""

    path: Path
    key: str


class FileTensors:
    """The stored tensors of a deferred model."""

    def __init__(self, tensors: Mapping[StorageKey, FileTensor], files: ModelFiles) -> None:
        """`files`: the files of the tensors, which exist as long as this object."""
        self._tensors, self._files = tensors, files

    def __contains__(self, storage: StorageKey) -> bool:
        return storage in self._tensors

    def fill(self, storage: StorageKey, destinations: Sequence[Destination]) -> None:
        """Read each destination's rows and cast them to its dtype."""
        from safetensors import safe_open

        stored = self._tensors[storage]
        with safe_open(stored.path, framework="pt") as file:
            for destination in destinations:
                if destination.memory.ndim == 0:
                    destination.store(file.get_tensor(stored.key))
                elif destination.memory.numel():
                    destination.store_part(file.get_slice(stored.key)[destination.rows])


class StreamedTraits:
    """Computes a model's traits while it is deferred: an `Examination`."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, DeferredTensor], files: Files, *, packed: bool) -> None:
        self._model = model
        self._tensors = tensors
        self._files = files
        self._packed = packed

    def run(self) -> ModelTraits:
        self._model.eval()
        try:
            with stream_values(self._model, self._tensors, self._files):
                return read_traits_at_once(self._model, packed=self._packed)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise CannotDeferError(f"a forward failed with {type(error).__name__}: {error}") from error

    def apply(self, result: ModelTraits) -> None:
        set_forward(self._model, result)
        # Otherwise the streamed forward would have failed.
        self._model.calls_embeddings = True  # type: ignore[assignment]


def locate_parameters(files: ModelFiles, model: nn.Module, recording: Recording) -> FileTensors:
    """Return where the parameters of a transformers model are stored.

    Raises:
        CannotDeferError: The folder's tensors are not the model's parameters one to one, by name and shape.
    """
    _check_conversions(model)
    stored = dict(_stored_tensors(files.folder))
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    located: dict[StorageKey, FileTensor] = {}
    for parameter, aliases in names.items():
        matching = [name for name in aliases if name in stored]
        if len(matching) != 1:
            raise CannotDeferError(f"`{aliases[0]}` has {len(matching)} tensors in the files")
        source, shape, dtype = stored.pop(matching[0])
        if shape != list(parameter.shape) or dtype not in _FLOATS:
            raise CannotDeferError(f"`{aliases[0]}` is {dtype} of shape {shape} in the files")
        described = recording.describe(parameter)
        if described is None:
            raise CannotDeferError(f"`{aliases[0]}` is computed")
        located[described.storage] = source
    if rest := [key for key in stored if not key.endswith(_RECOMPUTED)]:
        raise CannotDeferError(f"`{rest[0]}` of the files is no parameter of the model")
    if buffers := set(model.state_dict()) - {alias for aliases in names.values() for alias in aliases}:
        raise CannotDeferError(f"the buffer `{min(buffers)}` belongs to the weights")
    return FileTensors(located, files)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a model's weights; none if the folder has neither the single file nor an index."""
    if (folder / _FILE).is_file():
        return [folder / _FILE]
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))]
    return []


def _check_conversions(model: Any) -> None:
    """Raise CannotDeferError if transformers changes tensors of this kind of model when it loads them."""
    if getattr(model.config, "quantization_config", None) is not None:
        raise CannotDeferError("the model is quantised")
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping

        converted = get_model_conversion_mapping(model, add_legacy=False)
    except (ImportError, TypeError):
        raise CannotDeferError("this release of transformers has no list of the tensors that it converts") from None
    if converted:
        raise CannotDeferError("transformers converts tensors of this model")


def _stored_tensors(folder: Path) -> Iterator[tuple[str, tuple[FileTensor, list[int], str]]]:
    """Yield the name, place, shape and dtype of each tensor of the folder."""
    from safetensors import safe_open

    files = weight_files(folder)
    if not files:
        raise CannotDeferError(f"the folder has neither {_FILE} nor {INDEX}")
    for path in files:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a dictionary
                if key.endswith(_RENAMED):
                    raise CannotDeferError(f"transformers may rename `{key}`")
                part = file.get_slice(key)
                yield key, (FileTensor(path, key), part.get_shape(), part.get_dtype())
