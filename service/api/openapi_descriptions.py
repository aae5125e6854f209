"""Descriptions of parameters and response headers that have the same meaning on all routes."""

from typing import Any

PARAMETERS = {
    "job_id": "Id of the job: `job_...`.",
    "sweep_id": "Id of the sweep: `swp_...`.",
    "checkpoint_id": "Id of the checkpoint: `ckpt_...`.",
    "view_id": "Id of the saved view: `view_...`.",
    "webhook_id": "Id of the webhook: `whk_...`.",
    "file_id": "Id of the data file: `file_...`.",
    "upload_id": "Id of the upload: `upl_...`.",
    "model_name": "Name of the registered model.",
    "alias": "Name of a version that can be moved, such as `prod`.",
    "version": "Number of the version.",
    "secret_name": "Name of the environment variable.",
    "user_name": "Name of the user and of the Unix account.",
    "token_id": "Id of the token (not a secret).",
    "orphan_id": "Id of the orphan: a job's id, or the name of an attempt in the scheduler.",
    "estimate_id": "Id of the start estimate, from the plan's `start_estimate`.",
    "aid": "Id of the attempt.",
    "path": "Path of the file in its folder, with slashes.",
    "limit": "Maximum number of results.",
    "after": "`last_id` of the previous page; for a stream, the id of the last received event.",
    "offset": "Offset of the first byte in the log.",
    "idempotency-key": "Repeating a request with the same key and body returns the first response.",
    "status": "Jobs in this status, or in any of several statuses.",
    "name": "Exact name.",
    "created_by": "Submitted by this user.",
    "logs": "Whether to include log lines.",
    "actor": "Who made the request.",
    "outcome": "Result of the request.",
}

_LOG = {
    "X-Trainyard-Offset": "Offset of this text in the log, in bytes.",
    "X-Trainyard-Next-Offset": "Offset to continue at.",
}

_RANGE = {"Content-Range": "Returned range and size of the file."}
_CACHE_HEADERS = {
    "ETag": "Version of the file, for `If-Range` and `If-None-Match`.",
    "Last-Modified": "Time of the last change.",
}

_STATUS_HEADERS = {
    "206": _RANGE | _CACHE_HEADERS,
    "304": _CACHE_HEADERS,
    "416": _RANGE,
    "401": {"WWW-Authenticate": "`Bearer`."},
    "429": {"Retry-After": "Seconds to wait."},
    "503": {"Retry-After": "Seconds to wait."},
}

_RATE = {
    "RateLimit-Limit": "Maximum burst of requests of the token.",
    "RateLimit-Remaining": "Remaining requests.",
    "RateLimit-Reset": "Seconds until the limit is fully restored.",
}

_REPLAYED = {"Idempotent-Replayed": "`true`: the stored response of an earlier request with this key."}
_TAR = {"Content-Disposition": "Suggested file name."}
_ANSWER_HEADERS = {
    "get_log": _LOG,
    "submit_job": _REPLAYED,
    "submit_sweep": _REPLAYED,
    **{f"{verb}_{archive}": _TAR for verb in ("download", "check") for archive in ("checkpoint", "export")},
    **{
        f"{verb}_{kind}": _CACHE_HEADERS
        for verb in ("download", "check")
        for kind in ("artifact", "checkpoint_file", "export_file", "file")
    },
}


def headers(operation: str, status: str, *, private: bool, limited: bool) -> dict[str, Any]:
    """Return the headers of one response: the request id, rate limits where they apply, and those of the status.

    Args:
        private: the route requires a token, and its answers must not be stored.
    """
    descriptions = {"X-Request-ID": "Id of this request in the service's log."} | (_RATE if limited else {})
    descriptions |= {"Cache-Control": "`no-store`: the answer is private."} if private else {}
    descriptions |= _STATUS_HEADERS.get(status, {}) | (
        _ANSWER_HEADERS.get(operation, {}) if status in ("200", "201") else {}
    )
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in descriptions.items()}
