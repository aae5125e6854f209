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
from pathlib import Path
from typing import IO, Any

from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.sizes import format_size

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
MAX_CONFIG_BYTES = 2**20
MAX_INDEX_BYTES = 32 * 2**20
MAX_HEADER_BYTES = 32 * 2**20
MAX_TOTAL_HEADER_BYTES = 128 * 2**20
"""Of all headers together."""
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
    """What is read of a folder."""

    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    bytes: int
    """Bytes of the weights on disk."""


def read_folder(path: str, roots: AllowedRoots) -> FolderContents:
    """Read a model's configuration and headers.

    Raises:
        FolderError: A file is missing, broken, too large, not a regular file, or outside of the roots.
    """
    folder = Path(path)
    real = _inside(folder, roots)
    config = _read_json(real / CONFIG, MAX_CONFIG_BYTES, roots)
    tensors: dict[str, StoredTensor] = {}
    total, header_budget = 0, MAX_TOTAL_HEADER_BYTES
    for name in _shards(real, roots):
        parsed, size, header = _header(real / name, roots, header_budget)
        header_budget -= header
        if duplicates := tensors.keys() & parsed.keys():
            raise FolderError(f"{name}: tensor `{min(duplicates)}` is in another file, too")
        tensors |= parsed
        if len(tensors) > MAX_TENSORS:
            raise FolderError(f"there are more than {MAX_TENSORS} tensors in the folder")
        total += size
    return FolderContents(config, tensors, total)


def _inside(path: Path, roots: AllowedRoots) -> Path:
    """Return the real path, with links resolved."""
    try:
        return roots.resolve(path)
    except OutsideRootsError as error:
        raise FolderError(str(error)) from None
    except (OSError, RuntimeError) as error:
        raise FolderError(f"{path} cannot be read: {_reason(error)}") from None


def _open(path: Path, roots: AllowedRoots) -> IO[bytes]:
    real = _inside(path, roots)
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(f"{path.name} cannot be read: {_reason(error)}") from None
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise FolderError(f"{path.name} is not a regular file")
    return file


def _read_json(path: Path, max_bytes: int, roots: AllowedRoots) -> dict[str, Any]:
    with _open(path, roots) as file:
        text = _read(file, max_bytes + 1, path.name)
    if len(text) > max_bytes:
        raise FolderError(f"{path.name} is larger than {format_size(max_bytes)}")
    return _parse_object(text, path.name)


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


def _shards(folder: Path, roots: AllowedRoots) -> list[str]:
    """Return the names of the weight files: those of the index, or all *.safetensors."""
    if (folder / INDEX).is_file():
        weights = _read_json(folder / INDEX, MAX_INDEX_BYTES, roots).get("weight_map")
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


def _listed(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)]
    except OSError as error:
        raise FolderError(f"{folder} cannot be read: {_reason(error)}") from None


def _header(path: Path, roots: AllowedRoots, header_budget: int) -> tuple[dict[str, StoredTensor], int, int]:
    """Return the tensors, the bytes of weights and the bytes of the header."""
    with _open(path, roots) as file:
        prefix = _read(file, 8, path.name)
        length = int.from_bytes(prefix, "little")
        size = os.fstat(file.fileno()).st_size
        if len(prefix) < 8 or length > size - 8:
            raise FolderError(f"{path.name} is no complete safetensors file")
        if length > min(MAX_HEADER_BYTES, header_budget):
            raise FolderError(f"{path.name} has a header of {format_size(length)}, more than is read")
        parsed = _parse_object(_read(file, length, path.name), f"the header of {path.name}")
    parsed.pop("__metadata__", None)
    tensors = {name: _stored(entry, f"{path.name}: tensor `{name}`") for name, entry in parsed.items()}
    declared = sum(tensor.size * WIDTHS.get(tensor.dtype, 1) for tensor in tensors.values())
    if declared > size - 8 - length:
        raise FolderError(f"{path.name} is shorter than its header says")
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
    return error.strerror or "it cannot be opened" if isinstance(error, OSError) else "it leads to itself"
