"""What a request wants of a file: all of it, one range, or only whether it is still the one that was seen before."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Annotated

from fastapi import Depends, Header, Request

Range = Annotated[str | None, Header(description="One range of bytes; several are answered by the whole file.")]
IfRange = Annotated[
    str | None,
    Header(description="The `ETag` of the file that a part is had of; of any other file the whole is sent. No dates."),
]
IfNoneMatch = Annotated[
    str | None, Header(description="The `ETag` of a file that is had already, or several: answered by a 304.")
]


@dataclass(frozen=True)
class Wanted:
    """The part of the request that is about the file."""

    head: bool = False
    """Only the headers."""
    range: str | None = None
    if_range: str | None = None
    if_none_match: str | None = None

    def range_of(self, etag: str) -> str | None:
        """The range to send; None: the whole file, as where what was seen before was another."""
        return self.range if not self.head and self.if_range in (None, etag) else None

    def is_known(self, etag: str) -> bool:
        """Whether the caller has this very file."""
        told = [one.strip().removeprefix("W/") for one in (self.if_none_match or "").split(",")]
        return etag in told or told == ["*"]


def is_head(request: Request) -> bool:
    """Whether only the headers are asked for."""
    return request.method == "HEAD"


HeadDep = Annotated[bool, Depends(is_head)]


def get_wanted(
    head: HeadDep, range: Range = None, if_range: IfRange = None, if_none_match: IfNoneMatch = None
) -> Wanted:
    """For a route that answers with a file."""
    return Wanted(head, range, if_range, if_none_match)


WantedDep = Annotated[Wanted, Depends(get_wanted)]


def etag_of(seen: os.stat_result) -> str:
    """A name of what is in the file: another one written in its place has another, and so has one that grew."""
    return f'"{seen.st_ino:x}-{seen.st_mtime_ns:x}-{seen.st_size:x}"'


def freshness(seen: os.stat_result) -> dict[str, str]:
    """The headers by which a caller can tell this file from another."""
    changed = datetime.fromtimestamp(int(seen.st_mtime), UTC)
    return {"ETag": etag_of(seen), "Last-Modified": format_datetime(changed, usegmt=True), "Accept-Ranges": "bytes"}
