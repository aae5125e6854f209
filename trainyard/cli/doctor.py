"""`doctor`: is everything in order? The service's side is asked in a process of its own, where that is here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec

import httpx
import typer

from trainyard import __version__
from trainyard.cli.failures import FAILED
from trainyard.cli.output import emit, say
from trainyard.cli.session import JsonOption, client_of
from trainyard.client import AuthenticationError, Client, TrainyardError
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_SECONDS = 60.0
_MOST_SKEW = 5.0
_OLDEST_SNAPSHOT = 300.0
_SIGNS = {"ok": "ok", "warning": "warning", "error": "ERROR"}


def doctor(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Look at the installation: one line each, with the fix. The exit code is 1 when something is wrong.

    With an administrator's token the service is asked what it sees of its database, folders, Slurm and GPUs. If no
    service answers and TRAINYARD_URL is not set, the settings of this shell are examined instead: run it that way
    before the first `trainyard serve`.

    Example: trainyard doctor
    """
    wrong = False
    with client_of(ctx) as client:
        for finding in _examine(client):
            wrong |= finding.state == "error"
            if as_json:
                emit(finding)
            else:
                fix = f" Fix: {finding.fix}" if finding.fix else ""
                say(f"{_SIGNS[finding.state]:<9}{finding.name:<12}{finding.message}.{fix}")
    raise typer.Exit(FAILED if wrong else 0)


def _examine(client: Client) -> Iterator[Finding]:
    yield ok_finding("client", f"trainyard {__version__} with Python {sys.version.split()[0]}")
    answered = False
    for finding in _way_to_service(client):
        answered = answered or (finding.name == "service" and finding.state == "ok")
        yield finding
    if answered:
        yield from _with_the_token(client)
        if client.local and os.environ.get("TRAINYARD_BACKEND") == "slurm":
            yield from _look("--scheduler")
    elif os.environ.get("TRAINYARD_URL"):
        told = f"not looked at: TRAINYARD_URL says that the service is {client.url}, and it does not answer"
        yield warning_finding("here", told, "unset TRAINYARD_URL to examine the settings of this shell")
    elif client.local:
        yield from _service_side()


def _as_the_service_sees_it(client: Client) -> Iterator[Finding]:
    try:
        findings = client.doctor().findings
    except TrainyardError as error:
        told = f"the service does not say what it sees of itself: {error.message}"
        yield warning_finding("itself", told, "ask with an administrator's token, or run this on its machine")
        return
    yield ok_finding("itself", "what follows is what the service sees of its own settings")
    yield from findings


def _way_to_service(client: Client) -> Iterator[Finding]:
    try:
        answer = httpx.get(f"{client.url}/readyz", timeout=10.0, trust_env=not client.local)
    except httpx.HTTPError as error:
        told = f"{client.url} does not answer: {error or type(error).__name__}"
        yield error_finding("service", told, "start it with: trainyard serve; or set TRAINYARD_URL")
        return
    if not _is_ours(answer):
        told = f"{client.url} answers {answer.status_code}, with something that is not Trainyard's"
        yield error_finding("service", told, "set TRAINYARD_URL to the service's address; is a proxy in between?")
        return
    if answer.status_code == 200:
        yield ok_finding("service", f"{client.url} is ready")
    else:
        yield error_finding(
            "service", f"{client.url} answers {answer.status_code}: {answer.text[:200]}", "mend what it names"
        )
    yield clock_finding(answer.headers.get("date"), datetime.now(UTC))


def _is_ours(answer: httpx.Response) -> bool:
    try:
        said = answer.json()
    except ValueError:
        return False
    return isinstance(said, dict) and ("checks" in said or "error" in said)


def clock_finding(date: str | None, now: datetime) -> Finding:
    """How far the service's clock is from ours, to the second. Pure."""
    try:
        skew = abs((parsedate_to_datetime(date or "") - now).total_seconds())
    except (TypeError, ValueError):
        return warning_finding("time", "the service does not say what time it is", "is a proxy in between?")
    if skew > _MOST_SKEW:
        return warning_finding(
            "time", f"the service's clock differs by {skew:.0f} s", "run NTP or chrony on both machines"
        )
    return ok_finding("time", "the service's clock agrees with this machine's")


def _with_the_token(client: Client) -> Iterator[Finding]:
    try:
        own = client.whoami()
    except TrainyardError as error:
        yield error_finding("you", error.message, "set TRAINYARD_TOKEN to a token from: trainyard tokens create NAME")
        if isinstance(error, AuthenticationError):
            return
    else:
        yield ok_finding("you", f"a token of {own.name} with the role {own.role}")
    yield _cluster(client)
    yield from _as_the_service_sees_it(client)


def _cluster(client: Client) -> Finding:
    try:
        found = client.cluster()
    except TrainyardError as error:
        return warning_finding("cluster", error.message, "see the service's log")
    if found.error:
        return error_finding(
            "cluster", f"the scheduler does not answer: {found.error}", "is it up? see the service's log"
        )
    if found.age_seconds is None or found.age_seconds > _OLDEST_SNAPSHOT:
        return warning_finding(
            "cluster", "there is no recent answer of the scheduler", "does the reconciler run? see its log"
        )
    return ok_finding("cluster", f"{found.backend}; asked {found.age_seconds:.0f} s ago")


def _service_side() -> Iterator[Finding]:
    chosen = sorted(name for name in os.environ if name.startswith("TRAINYARD_"))
    told = f"set here: {', '.join(chosen)}" if chosen else "no TRAINYARD_* is set here, so they are the defaults"
    yield ok_finding("here", f"no service answers; what follows is about the settings of this shell ({told})")
    if find_spec("service") is None:
        yield warning_finding(
            "here", "the service is not installed here", "run this on the machine of the service as well"
        )
        return
    yield from _look()


def _look(*options: str) -> Iterator[Finding]:
    """What the service's own program finds with the settings of this shell."""
    command = [sys.executable, "-m", "service", "doctor", *options]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield error_finding(
            "here", f"looking took more than {_SECONDS:.0f} s", "is the shared filesystem or Slurm stuck?"
        )
        return
    lines = [line for line in answer.stdout.splitlines() if line.startswith("{")]
    yield from (Finding.model_validate(json.loads(line)) for line in lines)
    if answer.returncode not in (0, 1) or not lines:
        told = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        yield error_finding("settings", told, "mend the TRAINYARD_* setting that it names")
