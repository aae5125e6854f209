"""The forms of messages: an unchanged event, or a text for people. Pure functions."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from trainyard.contract.base import sanitize

_MAX_NAME = 120
_MAX_MESSAGE = 1000
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def message_body(body: str, form: str, service_url: str) -> str:
    """Return the text to send for an event: JSON in the webhook's form.

    Args:
        body: The event as JSON, as the outbox stores it.
        form: `WebhookFormat`.
        service_url: Where users open the pages of jobs.
    """
    if form != "slack":
        return body
    return json.dumps({"text": slack_text(json.loads(body), service_url)}, ensure_ascii=False)


def slack_text(event: Mapping[str, Any], service_url: str) -> str:
    """Return an event as one line of Slack's markup: name, status, reason, runtime and a link to the job or cluster."""
    if isinstance(node := event.get("node"), Mapping):
        cause = f"{_escaped(str(node['cause']))} ({node['jobs']} jobs)"
        link = f"<{service_url.rstrip('/')}/cluster|cluster>"
        return f"*{_escaped(str(node['node']))}* excluded until {_escaped(str(node['until']))}: {cause}. {link}"
    job = event.get("job")
    if not isinstance(job, Mapping):
        return f"Test of a webhook of {_escaped(service_url)}"
    name = _escaped(str(job["name"])[:_MAX_NAME])
    link = f"<{service_url.rstrip('/')}/jobs/{quote(str(job['id']))}|{_escaped(str(job['id']))}>"
    if isinstance(alert := event.get("alert"), Mapping):
        texts = [_escaped(str(alert[part])[:_MAX_MESSAGE]) for part in ("title", "text") if alert[part]]
        return f"*{name}* {_escaped(str(alert['level']))}: {': '.join(texts)} {link}"
    reason = f" ({_escaped(str(job['status_reason']))})" if job.get("status_reason") else ""
    message = _escaped(str(job.get("status_message") or "")[:_MAX_MESSAGE])
    seconds = job.get("runtime_seconds")
    runtime = f" Runtime: {duration(seconds)}." if isinstance(seconds, int | float) else ""
    return f"*{name}* {_escaped(str(job['status']))}{reason}: {message}{runtime} {link}"


def duration(seconds: float) -> str:
    """Return seconds in the two largest units: `3 h 20 min`."""
    rest = max(0, round(seconds))
    parts: list[tuple[int, str]] = []
    for unit, length in _UNITS:
        whole, rest = divmod(rest, length)
        if whole or parts:
            parts.append((whole, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"


def _escaped(text: str) -> str:
    """Return text without markup of Slack that would notify people or make links, on one line."""
    plain = " ".join(str(sanitize(text)).split())
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("*", "\u2217")
