"""`trainyard open`: a page of the dashboard in the browser, signed in."""

import os
import sys
import webbrowser
from html import escape
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from trainyard.cli.arguments import JsonOption, find_job, make_client
from trainyard.cli.completion import complete_job
from trainyard.cli.errors import print_note
from trainyard.cli.output import print_json, print_line
from trainyard.client.sign_ins import sign_ins_file
from trainyard.contract.layout import write_atomic

JobOption = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        autocompletion=complete_job,
        help="Id, unique prefix or suffix of an id, name or `last`. Default: the table of jobs.",
    ),
]
PrintOption = Annotated[bool, typer.Option("--print", help="Print the link instead of opening a browser.")]


def open_page(
    ctx: typer.Context, job_id: JobOption = None, only_print: PrintOption = False, as_json: JsonOption = False
) -> None:
    """Open the page of a job in the browser, signed in as the user of your token.

    The link works once, within a minute, and asks before it signs in.

    Example: trainyard open last
    """
    with make_client(ctx) as client:
        path = f"/jobs/{quote(find_job(client, job_id).id)}" if job_id is not None else "/jobs"
        made = client.create_sign_in_code()
        url = f"{client.url}/sign-in#{urlencode({'code': made.code, 'next': path}, safe='/')}"
    if as_json:
        print_json({"object": "sign_in_link", "url": url, "expires_at": made.expires_at.isoformat()})
    elif only_print:
        print_line(url)
        print_note("it signs in once, until a minute from now; give it to nobody")
    elif _has_display() and (page := _write_page(url)) and webbrowser.open(page.as_uri()):
        print_line(f"opened {client.url}{path}")
    else:
        print_line(url)
        print_note("no browser was started here; open this link in yours: it signs in once, until a minute from now")


def _has_display() -> bool:
    """Return whether a browser can show a window; otherwise `webbrowser` starts a browser in the terminal."""
    return not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _write_page(url: str) -> Path | None:
    """Write a page that leads to the link, for the browser alone: other users can read the arguments of programs.

    Return None if it cannot be written, for example because the disk is full.
    """
    path = sign_ins_file().with_name("open.html")
    address = escape(url)
    text = (
        '<!doctype html><meta charset="utf-8"><title>Trainyard</title>'
        f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Sign in to Trainyard</a>\n'
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, text, mode=0o600)
    except OSError as error:
        print_note(f"the browser was not started: {path}: {error.strerror}")
        return None
    return path
