"""`doctor`: checks the client, the service and, if the service runs here, its settings in a child process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Annotated

import httpx
import typer

from trainyard import __version__
from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.environment_checks import compare_with_sbatch
from trainyard.cli.errors import FAILED, UsageError
from trainyard.cli.output import print_json, print_line
from trainyard.cli.partition_checks import check_nodes, check_partitions
from trainyard.cli.service_program import service_command, service_problem
from trainyard.client import AuthenticationError, Client, TrainyardError
from trainyard.client.connection import own_admin_token_file
from trainyard.contract.http import ServiceTransport, describe_foreign, describe_tls_error, describe_way, has_api_header
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_SECONDS = 60.0
_MAX_CLOCK_SKEW = 5.0
_MAX_SNAPSHOT_AGE = 300.0
_LEVEL_LABELS = {"ok": "ok", "warning": "warning", "error": "ERROR"}


def doctor(
    ctx: typer.Context,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also run a short job on each partition, and compare one with a job by sbatch."),
    ] = False,
    each_node: Annotated[
        bool, typer.Option("--each-node", help="With --deep: a job on each node instead, which imports the worker.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="How long --deep waits for its jobs.")
    ] = 300,
    as_json: JsonOption = False,
) -> None:
    """Check the installation; each finding has a fix. The exit code is 1 if there is an error.

    With an administrator's token, the service also checks its database, folders, Slurm and GPUs. If no service answers
    and TRAINYARD_URL is not set, the settings of this shell are checked instead, for example before the first
    `trainyard serve`. `--deep` submits a job to each partition that is up, or with `--each-node` to each node, compares
    the variables and limits of a job with a job by sbatch, and cancels jobs that have not ended after the timeout, or
    at Ctrl-C.

    Example: trainyard doctor
    """
    if each_node and not deep:
        raise UsageError("--each-node runs jobs; add --deep")
    has_errors = False
    with make_client(ctx) as client:
        checks = _run_checks(client)
        jobs = check_nodes(client, timeout) if each_node else check_partitions(client, timeout)
        deep_checks = (jobs, compare_with_sbatch(client, timeout)) if deep else ()
        for finding in chain(checks, *deep_checks):
            has_errors |= finding.state == "error"
            if as_json:
                print_json(finding)
            else:
                fix = f" Fix: {finding.fix}" if finding.fix else ""
                message = finding.message.removesuffix(".")
                print_line(f"{_LEVEL_LABELS[finding.state]:<9}{finding.name + ' ':<12}{message}.{fix}")
    raise typer.Exit(FAILED if has_errors else 0)


def _run_checks(client: Client) -> Iterator[Finding]:
    yield ok_finding("client", f"trainyard {__version__} with Python {sys.version.split()[0]}")
    answered = False
    for finding in _check_service(client):
        answered = answered or (finding.name == "service" and finding.state == "ok")
        yield finding
    if answered:
        yield from _check_with_token(client)
        if client.local and os.environ.get("TRAINYARD_BACKEND") == "slurm":
            yield from _run_service_doctor("--scheduler")
    elif os.environ.get("TRAINYARD_URL"):
        message = f"not checked: TRAINYARD_URL is {client.url}, and it does not answer"
        yield warning_finding("local", message, "unset TRAINYARD_URL to check the settings of this shell")
    elif client.local:
        yield from _check_local_settings()


def _service_diagnostics(client: Client) -> Iterator[Finding]:
    try:
        findings = client.doctor().findings
    except TrainyardError as error:
        message = f"the service's diagnostics are not available: {error.message}"
        yield warning_finding(
            "diagnostics", message, "use an administrator's token, or run this on the service's machine"
        )
        return
    yield ok_finding("diagnostics", "the following findings are reported by the service")
    yield from findings


def _check_service(client: Client) -> Iterator[Finding]:
    try:
        response = _get_ready(client)
    except httpx.HTTPError as error:
        reason = describe_tls_error(error) or error or type(error).__name__
        message = f"{client.url} does not answer{describe_way(error)}: {reason}"
        yield error_finding("service", message, "start it with: trainyard serve; or set TRAINYARD_URL")
        return
    if not has_api_header(response):
        yield error_finding("service", describe_foreign(response), "set TRAINYARD_URL to the service's address")
        return
    if response.status_code == 200:
        yield ok_finding("service", f"{client.url} is ready")
    else:
        yield error_finding(
            "service", f"{client.url} answers {response.status_code}: {response.text[:200]}", "fix the failed checks"
        )
    yield clock_finding(response.headers.get("date"), datetime.now(UTC))


def _get_ready(client: Client) -> httpx.Response:
    """Return the response of the service to `/readyz`, or the last response or error of another program."""
    transport = ServiceTransport(client.url, is_local=client.local)
    with httpx.Client(transport=transport, trust_env=False, timeout=10.0) as http:
        with suppress(httpx.HTTPError):
            response = http.get(f"{client.url}/readyz")
            if has_api_header(response):
                return response
        # The other way: directly, or by the proxy of the environment.
        return http.get(f"{client.url}/readyz")


def clock_finding(date: str | None, now: datetime) -> Finding:
    """Compare the `Date` header of a response with this machine's clock."""
    try:
        skew = abs((parsedate_to_datetime(date or "") - now).total_seconds())
    except (TypeError, ValueError):
        return warning_finding("clock", "the response has no Date header", "is there a proxy in between?")
    if skew > _MAX_CLOCK_SKEW:
        return warning_finding(
            "clock", f"the service's clock differs by {skew:.0f} s", "run NTP or chrony on both machines"
        )
    return ok_finding("clock", "the clocks agree")


def _check_with_token(client: Client) -> Iterator[Finding]:
    try:
        own = client.whoami()
    except TrainyardError as error:
        yield error_finding("token", error.message, _token_advice(client))
        if isinstance(error, AuthenticationError):
            return
    else:
        yield ok_finding("token", f"token of {own.name} with the role {own.role}")
    yield _check_cluster(client)
    yield from _service_diagnostics(client)


def _token_advice(client: Client) -> str:
    """Return how to get a first token: `trainyard tokens create` itself requires a token."""
    if not client.local:
        return "set TRAINYARD_TOKEN to a token that an administrator made with: trainyard tokens create NAME"
    file = own_admin_token_file()
    state = "was not accepted" if file.exists() else "does not exist"
    return (
        "set TRAINYARD_STATE_DIR to the state folder of the service (that of `trainyard serve --state-dir`), or "
        f"TRAINYARD_TOKEN to the text of the file admin_token in it; {file} {state}"
    )


def _check_cluster(client: Client) -> Finding:
    try:
        snapshot = client.cluster()
    except TrainyardError as error:
        return warning_finding("cluster", error.message, "see the service's log")
    if snapshot.error:
        return error_finding(
            "cluster", f"the scheduler does not answer: {snapshot.error}", "is it running? see the service's log"
        )
    if snapshot.age_seconds is None or snapshot.age_seconds > _MAX_SNAPSHOT_AGE:
        return warning_finding(
            "cluster", "the scheduler has not responded recently", "is the reconciler running? see its log"
        )
    return ok_finding("cluster", f"{snapshot.backend}; updated {snapshot.age_seconds:.0f} s ago")


def _check_local_settings() -> Iterator[Finding]:
    chosen = sorted(name for name in os.environ if name.startswith("TRAINYARD_"))
    message = f"set: {', '.join(chosen)}" if chosen else "no TRAINYARD_* variable is set; using defaults"
    yield ok_finding("local", f"no service answers; checking the settings of this shell ({message})")
    if problem := service_problem():
        yield warning_finding("local", problem, "or run this on the service's machine")
        return
    yield from _run_service_doctor()


def _run_service_doctor(*options: str) -> Iterator[Finding]:
    """Run `python -m service doctor` with the settings of this shell and yield its findings."""
    command = service_command("doctor", *options)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield error_finding(
            "local", f"the checks took more than {_SECONDS:.0f} s", "is the shared filesystem or Slurm stuck?"
        )
        return
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    yield from (Finding.model_validate(json.loads(line)) for line in lines)
    if done.returncode not in (0, 1) or not lines:
        message = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        yield error_finding("settings", message, "correct the TRAINYARD_* setting that it names")
