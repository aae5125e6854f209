"""The error of everything that prevents a model from being loaded or used."""

from trainyard.client.errors import TrainyardError


class LoadError(TrainyardError):
    """The model cannot be found, verified or loaded; the message names the cause and the hint."""
