"""Moments as people write them: a date, a date and a time, or how long ago."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

_AGO = re.compile(r"(\d{1,6})\s*(min|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def moment(text: str) -> datetime:
    """`2026-01-31`, `2026-01-31 12:00` (both UTC, unless it says otherwise), `30min`, `2h`, `3d`, `1w`.

    Raises:
        typer.BadParameter: it is none of them.
    """
    try:
        if ago := _AGO.fullmatch(text.strip()):
            return datetime.now(UTC) - int(ago[1]) * _UNITS[ago[2]]
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no moment; write 2026-01-31, '2026-01-31 12:00', 2h or 3d") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since", metavar="WHEN", parser=moment, help="Only those of then or later: 2026-01-31 (UTC), 2h, 3d."
    ),
]
UntilOption = Annotated[
    datetime | None, typer.Option("--until", metavar="WHEN", parser=moment, help="Only those from before.")
]
