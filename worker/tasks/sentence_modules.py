"""Reads how a folder of sentence-transformers makes its vectors, since a training must make them in the same way."""

import json
from pathlib import Path
from typing import Any

from trainyard.contract.allowed_roots import AllowedRoots
from worker.core.errors import RefusedError
from worker.data.data_files import opened_path

_MODULES = "modules.json"
_TRAINED = frozenset({"Transformer", "Pooling", "Normalize"})
"""The modules that a vector here is made by."""
_POOLING = {"mean": "mean", "cls": "first", "lasttoken": "last"}
"""The names in `embedding.pooling` by the names in sentence-transformers."""
_ALONE = f"remove {_MODULES} from a copy of the folder, to train its transformer alone."
_LEGACY, _TOKENS = "pooling_mode_", ("_tokens", "_token")


def check_sentence_modules(field: str, path: Path, pooling: str, roots: AllowedRoots) -> None:
    """Compare the folder of a model or an adapter with `embedding.pooling`. A folder without `modules.json` passes.

    Args:
        field: The field of the spec that names the folder, for messages.

    Raises:
        RefusedError: Its vectors are made in another way, or one of its files cannot be read.
    """
    if not (path / _MODULES).is_file():
        return
    modules = _read(field, path / _MODULES, roots)
    folders = _folders(field, path, modules)
    if others := sorted(folders.keys() - _TRAINED):
        raise RefusedError(
            f"{field}: {path} is a model of sentence-transformers with the module {others[0]}, which is not trained",
            _ALONE.capitalize(),
        )
    if "Pooling" not in folders:
        return
    modes = pooling_modes(_read(field, path / folders["Pooling"] / "config.json", roots))
    stated = [_POOLING.get(mode) for mode in modes]
    if stated == [pooling]:
        return
    message = f"embedding.pooling: is `{pooling}`, and the model in {path} has {' and '.join(map(repr, modes))}"
    can_set = len(stated) == 1 and stated[0]
    raise RefusedError(
        message, f"Set embedding.pooling to {stated[0]}, or {_ALONE}" if can_set else _ALONE.capitalize()
    )


def pooling_modes(config: Any) -> list[str]:
    """Return the modes that the configuration of a pooling module states, by the names of sentence-transformers."""
    if not isinstance(config, dict):
        return []
    stated = config.get("pooling_mode")
    if stated is not None:
        return [str(mode) for mode in (stated if isinstance(stated, list) else [stated])]
    names = [name.removeprefix(_LEGACY) for name, is_on in config.items() if name.startswith(_LEGACY) and is_on]
    # If no mode is set, sentence-transformers takes the mean.
    return [_short(name) for name in names] or ["mean"]


def _short(name: str) -> str:
    return next((name.removesuffix(end) for end in _TOKENS if name.endswith(end) and "sqrt" not in name), name)


def _folders(field: str, path: Path, modules: Any) -> dict[str, str]:
    """Return the folder of each kind of module. Raises RefusedError: the file has another form."""
    try:
        folders = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
    except (TypeError, KeyError):
        raise RefusedError(f"{field}: {path} has a {_MODULES} that is not that of sentence-transformers") from None
    if any("/" in folder or folder.startswith(".") for folder in folders.values()):
        raise RefusedError(f"{field}: {path} has a {_MODULES} that names something outside of the folder")
    return folders


def _read(field: str, file: Path, roots: AllowedRoots) -> Any:
    with opened_path(field, str(file), roots) as handle:
        try:
            return json.load(handle)
        except (ValueError, RecursionError):
            raise RefusedError(f"{field}: {file} is not JSON") from None
