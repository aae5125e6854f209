"""Reads the model's tensors of a checkpoint in a single process, without a process group.

torch stores a checkpoint's index as a pickle, and a job's code could write any pickle. It is unpickled with the classes
of an index alone, and files outside of the manifest are not opened.
"""

import pickle
from collections.abc import Collection
from enum import EnumType
from pathlib import PurePath
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.state_dict_loader import load

from trainyard.contract.layout import CheckpointLayout
from worker.core.float_halves import join

_MODEL, _LOW, _AVERAGE, _UPDATES = "model.", "low_halves.", "ema.", "progress.ema_updates"
_CLASSES: dict[tuple[str, str], Any] = {
    **{
        (one.__module__, one.__qualname__): one
        for one in (
            index.Metadata,
            index.TensorStorageMetadata,
            index.BytesStorageMetadata,
            index.ChunkStorageMetadata,
            index.TensorProperties,
            index.MetadataIndex,
            index.StorageMeta,
            index._MEM_FORMAT_ENCODING,
            _StorageInfo,
        )
    },
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): {str(torch.strided): torch.strided}.__getitem__,
    # The folder that the checkpoint was written to, which is not used.
    ("pathlib", "PosixPath"): PurePath,
    ("pathlib._local", "PosixPath"): PurePath,
}
"""The classes and functions of an index."""


class IndexFileError(ValueError):
    """The index is damaged, or holds objects that no checkpoint's index has."""


class ModelTensors:
    """The tensors of a checkpoint's model, by name."""

    def __init__(self, checkpoint: CheckpointLayout, files: Collection[str]) -> None:
        """Read the index. `files` are the manifest's files.

        Raises:
            IndexFileError: The index is not valid.
        """
        self._reader = _Reader(checkpoint, files)
        stored = self._reader.read_metadata().state_dict_metadata
        self._all = {key: entry for key, entry in stored.items() if isinstance(entry, index.TensorStorageMetadata)}
        self._entries = {key.removeprefix(_MODEL): entry for key, entry in self._all.items() if key.startswith(_MODEL)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(entry.size) for name, entry in self._entries.items()}

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a tensor in memory, as it was saved; both halves of a parameter in bf16."""
        entries = [self._entries[name], self._all.get(f"{_LOW}{name}")]
        return sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in entries if entry)

    @property
    def has_average(self) -> bool:
        """Whether the checkpoint holds an average of the weights that has been updated."""
        return _UPDATES in self._all and bool(self._read([_UPDATES])[_UPDATES])

    def read(self, names: Collection[str], *, averaged: bool = False) -> dict[str, torch.Tensor]:
        """Read whole tensors into host memory. Parameters that were saved as two halves have their exact fp32 values.

        Args:
            averaged: Read the average of a tensor if it exists; buffers and frozen parameters have none.

        Raises:
            OSError: A file could not be read.
        """
        prefixes = {name: _AVERAGE if averaged and f"{_AVERAGE}{name}" in self._all else _MODEL for name in names}
        keys = {name: f"{prefix}{name}" for name, prefix in prefixes.items()}
        halves = {name: f"{_LOW}{name}" for name, prefix in prefixes.items() if prefix == _MODEL}
        halves = {name: key for name, key in halves.items() if key in self._all}
        read = self._read([*keys.values(), *halves.values()])
        return {
            name: join(read[key], read[halves[name]]) if name in halves else read[key] for name, key in keys.items()
        }

    def _read(self, keys: Collection[str]) -> dict[str, torch.Tensor]:
        tensors = {key: torch.empty(self._all[key].size, dtype=self._all[key].properties.dtype) for key in keys}
        try:
            # Names with dots also stand for nested dictionaries.
            load(tensors, storage_reader=self._reader, no_dist=True)
        except CheckpointException as error:
            # torch's exception derives from BaseException, and starts with a list of ranks.
            (cause, _), *_ = error.failures.values()
            raise cause from None
        return tensors


class _Reader(FileSystemReader):
    def __init__(self, checkpoint: CheckpointLayout, files: Collection[str]) -> None:
        super().__init__(checkpoint.root)
        self._checkpoint = checkpoint
        self._files = frozenset(files)
        self._index: index.Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> index.Metadata:
        """Return the index, which is read once: torch replaces later errors of reading by an error without a cause."""
        self._index = self._index or self._read_index()
        return self._index

    def _read_index(self) -> index.Metadata:
        with (self._checkpoint.root / ".metadata").open("rb") as file:
            try:
                loaded = _IndexUnpickler(file).load()
            except (pickle.UnpicklingError, AttributeError, EOFError, LookupError, TypeError, ValueError) as error:
                raise IndexFileError(f"its index cannot be read: {error}") from None
        if not isinstance(loaded, index.Metadata) or not isinstance(loaded.storage_data, dict):
            raise IndexFileError("its index is not that of a checkpoint")
        for stored in loaded.storage_data.values():
            if not isinstance(stored, _StorageInfo) or stored.relative_path not in self._files:
                raise IndexFileError("its index names a file that is not in the manifest")
        loaded.storage_meta = index.StorageMeta()
        return loaded


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        if (module, name) == ("builtins", "getattr"):
            # Python 3.11.0 to 3.11.3 store members of enumerations by it.
            return _enum_member
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _enum_member(enumeration: Any, name: Any) -> Any:
    """Return a member of an enumeration; any other attribute is refused."""
    if not (isinstance(enumeration, EnumType) and type(name) is str and name in enumeration.__members__):
        raise pickle.UnpicklingError("it refers to an attribute that is no member of an enumeration")
    return enumeration[name]
