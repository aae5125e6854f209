"""Trainyard's public package: the contract, the client and the command line. Names are loaded when first used."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY_IMPORTS = {
    "TrainingSpec": "trainyard.contract.spec.training_spec",
    "Client": "trainyard.client",
    "AsyncClient": "trainyard.client",
    "run": "trainyard.client",
    "load": "trainyard.loading.load",
    "LoadError": "trainyard.loading.errors",
    "report": "trainyard.script",
    "checkpoint_dir": "trainyard.script",
    "should_stop": "trainyard.script",
}


__all__ = [
    "AsyncClient",
    "Client",
    "LoadError",
    "TrainingSpec",
    "__version__",
    "checkpoint_dir",
    "load",
    "report",
    "run",
    "should_stop",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module 'trainyard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_IMPORTS])
