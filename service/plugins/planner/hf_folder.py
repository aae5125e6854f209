"""Reading a Hugging Face folder: `config.json` and the headers of its safetensors files.

The folder is untrusted: only regular files under the allowed roots are opened, each up to a size limit, nothing is
executed, and weights are never read. The header format is documented at https://github.com/huggingface/safetensors.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import IO, Any

from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.sizes import format_size

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
MAX_CONFIG_BYTES = 2**20
MAX_INDEX_BYTES = 32 * 2**20
MAX_HEADER_BYTES = 32 * 2**20
MAX_TOTAL_HEADER_BYTES = 128 * 2**20
"""Maximum size of all headers together."""
MAX_SHARDS = 2048
MAX_ENTRIES = 10_000
MAX_TENSORS = 50_000

WIDTHS = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of an element, by the dtype names of safetensors."""


class FolderError(Exception):
    """The folder is not a readable model; the message names the file."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class FolderContents:
    """The data read from a folder."""

    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    bytes: int
    """Bytes of the weights on disk."""


def read_folder(path: str, roots: AllowedRoots) -> FolderContents:
    """Read a model's configuration and headers.

    Raises:
        FolderError: A file is missing, broken, too large, not a regular file, or outside of the roots.
    """
    folder = _open(path, roots, os.O_DIRECTORY)
    try:
        return _read_contents(_Folder(path, folder, roots))
    finally:
        os.close(folder)


@dataclass(frozen=True)
class _Folder:
    """The open folder, so that all files are read from the folder that was checked."""

    path: str
    handle: int
    roots: AllowedRoots

    def open(self, name: str) -> IO[bytes]:
        handle = _open(name, self.roots, folder=self.handle)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FolderError(f"{name} is not a regular file")
        return os.fdopen(handle, "rb")

    def has(self, name: str) -> bool:
        """Whether there is a file or a folder of this name."""
        try:
            os.stat(name, dir_fd=self.handle, follow_symlinks=False)
        except OSError:
            return False
        return True


def _read_contents(folder: _Folder) -> FolderContents:
    config = _read_json(folder, CONFIG, MAX_CONFIG_BYTES)
    tensors: dict[str, StoredTensor] = {}
    total, header_budget = 0, MAX_TOTAL_HEADER_BYTES
    for name in _shards(folder):
        parsed, size, header = _header(folder, name, header_budget)
        header_budget -= header
        if duplicates := tensors.keys() & parsed.keys():
            raise FolderError(f"{name}: tensor `{min(duplicates)}` is in another file, too")
        tensors |= parsed
        if len(tensors) > MAX_TENSORS:
            raise FolderError(f"there are more than {MAX_TENSORS} tensors in the folder")
        total += size
    return FolderContents(config, tensors, total)


def _open(path: str, roots: AllowedRoots, flags: int = 0, *, folder: int | None = None) -> int:
    try:
        return roots.open(path, flags, folder=folder)
    except OutsideRootsError as error:
        raise FolderError(str(error)) from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {_reason(error)}") from None


def _read_json(folder: _Folder, name: str, max_bytes: int) -> dict[str, Any]:
    with folder.open(name) as file:
        text = _read(file, max_bytes + 1, name)
    if len(text) > max_bytes:
        raise FolderError(f"{name} is larger than {format_size(max_bytes)}")
    return _parse_object(text, name)


def _parse_object(text: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise FolderError(f"{name} is not valid JSON") from None
    if not isinstance(parsed, dict):
        raise FolderError(f"{name} is not a JSON object")
    return parsed


def _read(file: IO[bytes], count: int, name: str) -> bytes:
    try:
        return file.read(count)
    except OSError as error:
        raise FolderError(f"{name} cannot be read: {_reason(error)}") from None


def _shards(folder: _Folder) -> list[str]:
    """Return the names of the weight files: the names in the index, or all *.safetensors."""
    if folder.has(INDEX):
        weights = _read_json(folder, INDEX, MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
            raise FolderError(f"{INDEX} has no `weight_map` from tensors to files")
        names = sorted(set(weights.values()))
    else:
        names = sorted(name for name in _listed(folder) if name.endswith(".safetensors") and not name.startswith("."))
    if not names:
        raise FolderError("there is no *.safetensors file in the folder")
    if len(names) > MAX_SHARDS:
        raise FolderError(f"there are more than {MAX_SHARDS} *.safetensors files")
    if bad := [name for name in names if "/" in name or name in ("", ".", "..")]:
        raise FolderError(f"{INDEX} names {bad[0]!r}, which is no file of the folder")
    return names


def _listed(folder: _Folder) -> list[str]:
    try:
        with os.scandir(folder.handle) as entries:
            return [entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)]
    except OSError as error:
        raise FolderError(f"{folder.path} cannot be read: {_reason(error)}") from None


def _header(folder: _Folder, name: str, header_budget: int) -> tuple[dict[str, StoredTensor], int, int]:
    """Return the tensors, the bytes of weights and the bytes of the header."""
    with folder.open(name) as file:
        prefix = _read(file, 8, name)
        length = int.from_bytes(prefix, "little")
        size = os.fstat(file.fileno()).st_size
        if len(prefix) < 8 or length > size - 8:
            raise FolderError(f"{name} is no complete safetensors file")
        if length > min(MAX_HEADER_BYTES, header_budget):
            raise FolderError(f"{name} has a header of {format_size(length)}, more than is read")
        parsed = _parse_object(_read(file, length, name), f"the header of {name}")
    parsed.pop("__metadata__", None)
    tensors = {key: _stored(entry, f"{name}: tensor `{key}`") for key, entry in parsed.items()}
    declared = sum(tensor.size * WIDTHS.get(tensor.dtype, 1) for tensor in tensors.values())
    if declared > size - 8 - length:
        raise FolderError(f"{name} is shorter than its header says")
    return tensors, size - 8 - length, length


def _stored(entry: Any, what: str) -> StoredTensor:
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > 8:
        raise FolderError(f"{what} has no type and shape")
    if not all(type(side) is int and 0 <= side < 2**48 for side in shape):
        raise FolderError(f"{what} has a shape that cannot be")
    return StoredTensor(dtype, tuple(shape))


def _reason(error: Exception) -> str:
    return error.strerror or "it cannot be opened" if isinstance(error, OSError) else "it is no valid name"
