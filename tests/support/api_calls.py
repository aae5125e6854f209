"""Which call of the client belongs to an operation of the API."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from trainyard.client._async.client import AsyncClient

METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: method for name, method in inspect.getmembers(AsyncClient, callable) if not name.startswith("_")}
)
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "create_view": "save_view",
        "delete_file": "delete_data_file",
        "enter_job": "access",
        "get_file": "data_file",
        "get_log": "logs",
        "get_own_token": "whoami",
        "get_upload": "",
        "list_export_files": "files",
        "list_files": "data_files",
        "readyz": "ready",
        "register_model_version": "register_model",
        "resolve_lost_jobs": "resolve_lost",
        "search_log": "search_logs",
    }
)
"""Calls that are not named after their operation; empty where a call of that name is another one."""
SNIPPETS: Mapping[str, str] = MappingProxyType(
    {
        "compare_media_keys": "client.compare_media_keys([job_id])",
        "compare_media_steps": 'client.compare_media_steps([job_id], "samples")',
        "compare_metrics": 'client.metrics_of([job_id], ["train/loss"])',
        "download_artifact": 'client.download_artifact(job_id, file_path, "trace.json.gz", overwrite=True)',
        "download_export": 'client.download(job_id, "model", overwrite=True)',
        "download_file": 'client.download_data_file(file_id, "copy.jsonl", overwrite=True)',
        "get_metrics": 'client.metrics(job_id, ["train/loss"])',
        "list_points": 'list(client.points(job_id, ["train/loss"]))',
        "list_checkpoint_files": 'client.files(job_id, f"checkpoints/{checkpoint_id}")',
        "put_code": 'client.upload("my-code")  # the folder, unless the service has it; the answer is `code` of a spec',
        "stream_job": "for event in client.stream(job_id):\n    print(event.type, event.data)",
        "stream_jobs": "event = next(client.stream_all())",
        "upload_file": 'client.upload_file("chat.jsonl")  # of any size, in parts',
    }
)
"""Calls whose arguments are not those of the route."""


def client_method(operation: str) -> str | None:
    """Return the name of the client's call: that of the operation, without its verb or object; None: there is none."""
    if operation in OTHER_NAMES:
        return OTHER_NAMES[operation] or None
    names = [operation, operation.removesuffix("_job")]
    names += [operation.removeprefix(verb) for verb in ("list_", "get_", "find_", "make_")]
    return next((name for name in names if name in METHODS), None)
