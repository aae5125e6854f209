"""The files of a model's folder, opened once: copies of the descriptive files, and links to the open weights.

Accounts that can write in the folder can replace any file between a check and the opening by a loader, which takes a
path. So a loader gets the path of a private folder. The real path of each file in it was checked after the file was
opened.
"""

import json
import os
import shutil
import stat
import tempfile
import weakref
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots, OutsideRootsError
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.exported import MODEL_CARD
from worker.core.errors import RefusedError

INDEX = "model.safetensors.index.json"
_WEIGHTS = ".safetensors"
_COPIED = frozenset(
    {".json", ".jinja", ".txt", ".model", ".spm", ".bpe", ".codes", ".vocab", ".tokenizer", ".tiktoken"}
)
"""The ends of the names of files that describe a model, a tokenizer or an image processor."""
_TEMPLATES = "additional_chat_templates"
"""The only subfolder that transformers reads."""
_ADAPTER = "adapter_config.json"
_CONFIG = "config.json"
_REDIRECTS = frozenset({"transformers_weights", "configuration_files"})
"""Fields of a configuration that name other files of weights, whose index may name any file, and configurations."""
_ATTENTION = frozenset({"attn_implementation", "_attn_implementation"})
_SPECIAL_TOKENS = "special_tokens_map.json"
_ARGUMENTS = frozenset({"tokenizer_config.json", _SPECIAL_TOKENS, "preprocessor_config.json", "processor_config.json"})
"""Files with arguments of classes of transformers."""
_NAMES_OF_PATHS = ("_file", "_files", "_path", "_dir", "_spm", "vocab", "merges", "init_inputs", "mecab_option")
"""The ends of the names of such arguments that can be paths. `save_pretrained` writes none of them."""
_SAVE_AGAIN = "Save the tokenizer again with save_pretrained."
_MAX_FILES = 10_000
_MAX_COPIED_BYTES = 2**30
_READ_BYTES = 2**20


class ModelFiles:
    """The files of a model's folder, until this object is deleted or `remove_private_folders` is called.

    Raises:
        RefusedError: The folder or a file cannot be read or leads out of the roots, or the folder holds an adapter.
    """

    def __init__(self, path: str, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> None:
        self._path = path
        self._roots = roots
        self._room = _MAX_COPIED_BYTES
        self.folder = Path(tempfile.mkdtemp(prefix="trainyard-model-"))
        """The private folder, which exists as long as this object."""
        self._weights: list[int] = []
        # Unlike weakref.finalize, also at the end of a process of multiprocessing, and not in a fork of this process.
        self.remove = Finalize(self, _remove, (self.folder, self._weights), exitpriority=0)
        _existing.add(self)
        handle = self._open(path, os.O_DIRECTORY)
        try:
            self._add_files(handle)
        finally:
            os.close(handle)
        self._check_index()

    def _add_files(self, folder: int) -> None:
        names = self._names(folder)
        if _ADAPTER in names:
            raise self._refusal(
                f"has an {_ADAPTER}: it is the folder of an adapter",
                "Name the folder of its base model, and the adapter in lora.adapter.",
            )
        for name in names:
            if name.endswith(_WEIGHTS):
                self._link(folder, name)
            elif name == MODEL_CARD or (os.path.splitext(name)[1] in _COPIED and not _redirects(name)):
                self._copy(folder, name)
        if _TEMPLATES in names:
            self._add_templates(folder)
        for path in self.folder.glob("*.json"):
            self._check_texts(path)

    def _add_templates(self, folder: int) -> None:
        handle = self._open(_TEMPLATES, os.O_DIRECTORY, folder=folder)
        try:
            (self.folder / _TEMPLATES).mkdir()
            for name in self._names(handle):
                if name.endswith(".jinja"):
                    self._copy(handle, os.path.join(_TEMPLATES, name))
        finally:
            os.close(handle)

    def _names(self, folder: int) -> list[str]:
        """Return the names in a folder without hidden names, such as `.git` and `.cache`, which no loader opens."""
        names = os.listdir(folder)
        if len(names) > _MAX_FILES:
            raise self._refusal(f"contains more than {_MAX_FILES} files")
        return sorted(name for name in names if not name.startswith("."))

    def _link(self, folder: int, name: str) -> None:
        handle = self._open(name, folder=folder)
        self._weights.append(handle)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            (self.folder / name).symlink_to(f"/proc/self/fd/{handle}")

    def _copy(self, folder: int, path: str) -> None:
        """Copy a file by its path in the model's folder; `folder`: the descriptor of the folder that holds it."""
        handle = self._open(path, folder=folder)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return
            with (self.folder / path).open("xb") as copy:
                while part := os.read(handle, min(_READ_BYTES, self._room + 1)):
                    self._room -= len(part)
                    if self._room < 0:
                        raise self._refusal(
                            f"has more than {format_size(_MAX_COPIED_BYTES)} of files beside its weights",
                            f"Remove what is no part of the model, such as {path}.",
                        )
                    copy.write(part)
        finally:
            os.close(handle)

    def _open(self, path: str, flags: int = 0, *, folder: int | None = None) -> int:
        shown = os.path.join(self._path, path)
        try:
            return self._roots.open(path if folder is None else os.path.basename(path), flags, folder=folder)
        except OutsideRootsError as error:
            raise RefusedError(f"model.path: {shown} {error.problem}") from None
        except OSError as error:
            if folder is None:
                raise self._refusal("is not a folder that this node can read") from None
            raise RefusedError(f"model.path: {shown} cannot be read: {error.strerror or error}") from None

    def _check_index(self) -> None:
        """Check the names in the index of the weights, each of which transformers opens as a path."""
        index = self.folder / INDEX
        if not index.is_file():
            return
        try:
            names = list(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._refusal(f"has a {INDEX} without a `weight_map` from tensors to files") from None
        for name in names:
            if not isinstance(name, str) or "/" in name or name.startswith(".") or not name.endswith(_WEIGHTS):
                raise self._refusal(f"has a {INDEX} that names {name!r}, which is no *{_WEIGHTS} file of it")

    def _check_texts(self, file: Path) -> None:
        """Remove or refuse texts that are paths for transformers or tokenizers, which would open any file: a vocabulary
        that is no object, and arguments of the tokenizer's class."""
        changed = file.name in _ARGUMENTS
        hook = self._refuse_redirects if file.name == _CONFIG else _without_paths if changed else None
        try:
            content = json.loads(file.read_text("utf-8"), object_hook=hook)
        except RecursionError:
            raise self._refusal(f"has a {file.name} that is nested too deeply", _SAVE_AGAIN) from None
        except ValueError:
            # The loader of the file fails, too, and explains the error.
            return
        model = content.get("model") if isinstance(content, dict) else None
        parts = [model.get("vocab"), model.get("merges")] if isinstance(model, dict) else []
        if any(isinstance(part, str) for part in (content, *parts)):
            raise self._refusal(f"has a {file.name} with a text instead of a vocabulary", _SAVE_AGAIN)
        if file.name == _SPECIAL_TOKENS and isinstance(content, dict):
            content = {name: value for name, value in content.items() if name.endswith(("_token", "_tokens"))}
        if changed:
            file.write_text(json.dumps(content))

    def _refuse_redirects(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse a part of a configuration that leads a loader to other files, or to code from elsewhere.

        It is not changed: its bytes are part of the digest of the model.
        """
        for name, value in values.items():
            is_foreign = name in _ATTENTION and isinstance(value, str) and "/" in value
            if name in _REDIRECTS or is_foreign:
                raise self._refusal(
                    f"has a {_CONFIG} with {name}, which names something outside of it", "Remove the field."
                )
        return values

    def _refusal(self, problem: str, hint: str | None = None) -> RefusedError:
        return RefusedError(f"model.path: {self._path} {problem}", hint)


_existing: "weakref.WeakSet[ModelFiles]" = weakref.WeakSet()


def remove_private_folders() -> None:
    """Remove all private folders: a rank ends without the clean-up of the interpreter."""
    for files in list(_existing):
        files.remove()


def _remove(folder: Path, weights: list[int]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for handle in weights:
        os.close(handle)


def _redirects(name: str) -> bool:
    """Return whether a file is another index of weights, or a configuration for some releases of transformers."""
    is_index = name.endswith(".index.json") and name != INDEX
    return is_index or (name.startswith("config.") and name != _CONFIG)


def _without_paths(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith(_NAMES_OF_PATHS)}
