"""What a text means as a model: a job, or a registered model with a version or an alias. Loads no torch."""

from pathlib import Path

from trainyard.client import Client
from trainyard.client.download import Progress, no_progress
from trainyard.loading.sources import Choice, Convert, fetch


def fetch_source(
    client: Client, source: str, choice: Choice, convert: Convert, progress: Progress = no_progress
) -> Path:
    """Return a local folder with the model that a text names.

    Raises:
        LoadError: There is no such model.
        TrainyardError: A request failed.
    """
    return fetch(client, client.job(source).resource, choice, convert, progress)
