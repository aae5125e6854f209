"""HTTP between a service and its workers and clients: who answered, and which certificate authorities are trusted."""

import json
import os
import ssl
from collections.abc import Mapping

import httpx
from pydantic import ValidationError

from trainyard.contract.wire.pages import ErrorEnvelope

API_HEADER = "x-trainyard-api"
"""Every answer of a service has this header. What lacks it may be of a proxy, a sign-in page or another program."""
API_VERSION = "1"

_CAUSES: Mapping[int, str] = {
    400: "a proxy refuses the request; does the URL say https where the proxy expects http, or the reverse?",
    401: "a proxy wants a sign-in of its own, from which /v1 must be excluded",
    403: "a proxy or firewall refuses the request",
    404: "another program answers there, or a proxy does not pass this path on",
    405: "another program answers there, or a proxy does not pass this method on",
    407: "a proxy wants a sign-in of its own; NO_PROXY can name the service",
    408: "a proxy has not received the request in time",
    413: "a proxy limits the size of requests (nginx: client_max_body_size)",
    429: "a proxy limits the number of requests",
    431: "a proxy limits the size of headers",
    500: "a proxy has failed",
    502: "a proxy does not reach the service; is it running?",
    503: "a proxy has no service to which it can pass the request; is it running?",
    504: "a proxy has not received an answer of the service in time",
}


def has_api_header(answer: httpx.Response) -> bool:
    """Return whether the service itself answered, by the header that it adds to every answer."""
    return API_HEADER in answer.headers


def error_envelope(answer: httpx.Response) -> ErrorEnvelope | None:
    """Return the body of an error answer whose body has been read; None if it is not one of a service."""
    try:
        return ErrorEnvelope.model_validate(json.loads(answer.content))
    except (ValueError, ValidationError, RecursionError):
        return None


def describe_foreign(answer: httpx.Response) -> str:
    """Return a sentence about an answer that no service sent, with its likely cause."""
    status, location = answer.status_code, answer.headers.get("location")
    server = answer.headers.get("server")
    who = f"something other than Trainyard (Server: {server[:60]})" if server else "something other than Trainyard"
    cause = _CAUSES.get(status, "a proxy, or another program, answers there")
    if status < 300:
        cause = "another program, or the sign-in page of a network, answers there"
    elif status < 400:
        cause = f"it redirects to {location[:200]}" if location else "it redirects"
    return f"{answer.request.url.copy_with(userinfo=None, query=None)} was answered by {who} with {status}: {cause}"


def trust(url: str) -> ssl.SSLContext:
    """Return the certificate authorities for a service: the public ones or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`,
    and those of this machine, where a site may have installed its own. Without TLS none are read."""
    if not url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def describe_tls_error(error: Exception) -> str | None:
    """Return what is wrong with the TLS of a connection, and the remedy; None if the error is another one."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        named = [f"{name}={os.environ[name]}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)]
        trusted = " and ".join(named) or "the public ones"
        return (
            f"its certificate is not trusted ({text}); the trusted authorities are {trusted} and those of this "
            "machine: name the file of the service's authority in SSL_CERT_FILE, for jobs in the service's setting "
            "TRAINYARD_WORKER_CA_FILE"
        )
    if "ssl" in text.lower():
        return f"{text}; should the URL start with http://?"
    return None
