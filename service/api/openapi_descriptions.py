"""What a parameter or a header of an answer means, for those that mean the same on every route that has them."""

from typing import Any

PARAMETERS = {
    "job_id": "Id of the job: `job_...`.",
    "sweep_id": "Id of the sweep: `swp_...`.",
    "checkpoint_id": "Id of the checkpoint: `ckpt_...`.",
    "webhook_id": "Id of the webhook: `whk_...`.",
    "token_id": "Id of the token, which is no secret.",
    "estimate_id": "Id of the start estimate, from the plan's `start_estimate`.",
    "aid": "Id of the attempt.",
    "path": "The file's path in its folder, with slashes.",
    "limit": "How many at most.",
    "after": "The `last_id` of the page before; of a stream, the id of the last event that was seen.",
    "offset": "The place of the first byte in the log.",
    "idempotency-key": "The same key with the same body gives what the first request made.",
    "status": "Jobs in this status, or in any of several.",
    "name": "Of exactly this name.",
    "created_by": "Submitted by this person.",
    "logs": "Whether lines of logs are wanted too.",
    "actor": "Who asked for it.",
    "outcome": "What came of it.",
}

_LOG = {
    "X-Trainyard-Offset": "Where this text begins in the log, in bytes.",
    "X-Trainyard-Next-Offset": "Where to go on.",
}

_RANGE = {"Content-Range": "Which bytes of how many."}
_FRESH = {
    "ETag": "A name of the file as it is now, for `If-Range` and `If-None-Match`.",
    "Last-Modified": "When it was written.",
}

_OF_STATUS = {
    "206": _RANGE | _FRESH,
    "304": _FRESH,
    "416": _RANGE,
    "401": {"WWW-Authenticate": "`Bearer`."},
    "429": {"Retry-After": "Seconds to wait."},
    "503": {"Retry-After": "Seconds to wait."},
}

_RATE = {
    "RateLimit-Limit": "Requests that the token may make at once.",
    "RateLimit-Remaining": "How many of them are left.",
    "RateLimit-Reset": "Seconds until all are.",
}

_REPLAYED = {"Idempotent-Replayed": "`true`: the answer that the key has had before."}
_TAR = {"Content-Disposition": "A name for the file."}
_OF_ANSWER = {
    "get_log": _LOG,
    "submit_job": _REPLAYED,
    "submit_sweep": _REPLAYED,
    **{f"{verb}_{archive}": _TAR for verb in ("download", "check") for archive in ("checkpoint", "export")},
    **{
        f"{verb}_{kind}": _FRESH
        for verb in ("download", "check")
        for kind in ("artifact", "checkpoint_file", "export_file")
    },
}


def headers(operation: str, status: str, *, limited: bool) -> dict[str, Any]:
    """OpenAPI's headers of one answer; every one has the request's id, and where tokens are limited what is left."""
    told = {"X-Request-ID": "The id of this request in the service's log."} | (_RATE if limited else {})
    told |= _OF_STATUS.get(status, {}) | (_OF_ANSWER.get(operation, {}) if status in ("200", "201") else {})
    return {name: {"description": words, "schema": {"type": "string"}} for name, words in told.items()}
