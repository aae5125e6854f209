"""The plugins of this release, and which of them a service runs."""

from collections.abc import Sequence

from service.api.plugin import Plugin
from service.core.errors import InvalidRequestError
from service.plugins.mlflow.plugin import MLFLOW
from service.plugins.oidc.plugin import OIDC
from service.plugins.openai.plugin import OPENAI
from service.plugins.planner.plugin import PLANNER
from service.plugins.registry.plugin import REGISTRY
from service.plugins.sweeps.plugin import SWEEPS
from service.plugins.webhooks.plugin import WEBHOOKS

PLUGINS = (MLFLOW, OIDC, OPENAI, PLANNER, REGISTRY, SWEEPS, WEBHOOKS)


def select_plugins(disabled: Sequence[str]) -> tuple[tuple[Plugin, ...], tuple[Plugin, ...]]:
    """Return the plugins that a service runs, and the plugins whose names are disabled.

    Raises:
        InvalidRequestError: a name is no plugin's.
    """
    names = [plugin.name for plugin in PLUGINS]
    for name in disabled:
        if name not in names:
            raise InvalidRequestError(f"TRAINYARD_DISABLED_PLUGINS: {name!r} is not one of {', '.join(names)}")
    return (
        tuple(plugin for plugin in PLUGINS if plugin.name not in disabled),
        tuple(plugin for plugin in PLUGINS if plugin.name in disabled),
    )


def enabled_plugins(disabled: Sequence[str]) -> tuple[Plugin, ...]:
    """Return the plugins that a service runs. Raises InvalidRequestError: a name is no plugin's."""
    return select_plugins(disabled)[0]
