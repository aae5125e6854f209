"""Whether jobs can start from the folder of a base model, as far as this machine can tell."""

import json
import stat
from pathlib import Path

from trainyard.contract.spec.text_sources import CHAT_FORMATS

_MESSAGES = CHAT_FORMATS | {"openai_preference"}
"""Formats whose lines are formatted by a chat template."""
_TEMPLATES = ("chat_template.jinja", "additional_chat_templates")
_MAX_BYTES = 32 * 2**20


def needs_template(format: str) -> bool:
    """Return whether examples of a format cannot be read without a chat template."""
    return format in _MESSAGES


def folder_problem(path: str, *, shared: bool, template: bool) -> str | None:
    """Return why a folder is no model to start from.

    Args:
        path: The folder, as the nodes see it.
        shared: Whether this machine has all folders that the nodes have. Otherwise a missing folder is no problem.
        template: Whether the tokenizer must have a chat template.
    """
    folder = Path(path)
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return f"{path} is no folder"
        if not (folder / "config.json").is_file():
            return f"{path} has no config.json"
        return _template_problem(folder) if template else None
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist" if shared else None
    except OSError:
        # The account of the job may read more than the service's account.
        return None


def _template_problem(folder: Path) -> str | None:
    if any((folder / name).exists() for name in _TEMPLATES):
        return None
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return f"{folder} has no tokenizer_config.json, and so no chat template"
    if file.stat().st_size > _MAX_BYTES:
        return None
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return f"{file} is not JSON"
    if not isinstance(config, dict) or not config.get("chat_template"):
        return f"the tokenizer in {folder} has no chat template, which conversations need"
    return None
