"""`data`: shows how a job uses its data, and prints data accounts."""

import os
import sys
from collections.abc import Iterator

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, find_job, make_client
from trainyard.cli.errors import print_note
from trainyard.cli.output import is_terminal, print_error, print_json, print_line
from trainyard.contract.wire.data_accounts import DataAccount, DataAccounts, ExampleText, TextPart

_LEARNED, _PLAIN = "\x1b[32;4m", "\x1b[0m"
"""Learned text is green and underlined in a terminal."""


def data(ctx: typer.Context, job_id: JobArgument, as_json: JsonOption = False) -> None:
    """Show what a job learns of its data: records, tokens, and three examples of each source.

    Example: trainyard data last
    """
    with make_client(ctx) as client:
        accounts = client.data_accounts(find_job(client, job_id).id)
    if as_json:
        print_json(accounts)
        return
    if not accounts.data:
        print_note("no account of the data yet: it is made when a job has read texts from files")
    print_accounts(accounts)


def print_accounts(accounts: DataAccounts) -> None:
    """Print the account of each source, with its examples."""
    for number, account in enumerate(accounts.data):
        if number:
            print_line("")
        _print_account(account)
    if accounts.problem is not None:
        print_error(f"a job would be refused: {accounts.problem}")
        if accounts.hint:
            print_error(f"hint: {accounts.hint}")


def _print_account(account: DataAccount) -> None:
    print_line(f"data of {account.section}")
    for sentence in account.summary:
        print_line(f"  {sentence}")
    coloured = uses_colours()
    if account.shown and account.learned_tokens is not None:
        print_line("  learned text is " + ("green and underlined" if coloured else "between [[ and ]]"))
    for example in account.shown:
        for text in example.texts:
            print_line("")
            print_line(f"--- {_title(example.number, account.examples, text)}")
            sys.stdout.write(f"{rendered(text.parts, coloured=coloured)}\n")
            sys.stdout.flush()


def _title(number: int, examples: int, text: ExampleText) -> str:
    learned = f", {text.learned_tokens:,} of {text.tokens:,} tokens learned" if text.learned_tokens else ""
    label = f", {text.label}" if text.label is not None else ""
    name = "" if text.name == "text" else f", {text.name}"
    return f"example {number:,} of {examples:,}{name}{label}{learned}"


def uses_colours() -> bool:
    """Return whether stdout is a terminal with colours; see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def rendered(parts: list[TextPart], *, coloured: bool) -> str:
    """Return the text of an example with its learned parts marked, and with escapes for characters that a terminal
    hides."""
    return "".join(_marked(part, coloured=coloured) for part in parts)


def _marked(part: TextPart, *, coloured: bool) -> str:
    if part.omitted_tokens:
        return f"\n... {part.omitted_tokens:,} token{'s' * (part.omitted_tokens > 1)} ...\n"
    text = visible(part.text)
    if not part.learned:
        return text
    if not coloured:
        return f"[[{text}]]"
    # A terminal may underline to the end of the line unless each line is marked by itself.
    return "\n".join(f"{_LEARNED}{line}{_PLAIN}" if line else "" for line in text.split("\n"))


def visible(text: str) -> str:
    """Return text with escapes such as `\\x1b` for characters that a terminal hides or obeys; it keeps line breaks."""
    return "".join(_visible_characters(text))


def _visible_characters(text: str) -> Iterator[str]:
    for character in text:
        shown = character == "\n" or character.isprintable()
        yield character if shown else character.encode("unicode_escape").decode()
