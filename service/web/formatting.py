"""Numbers with units and times in words, as pages show them. Pure; `static/format.js` says the same in the browser."""

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

NOTHING = "\N{EN DASH}"


def number(value: Any, digits: int = 4) -> str:
    """Four significant digits; NaN and infinities by name."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{value:.{max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(value: float | None) -> str:
    """Bytes, in powers of 1000."""
    if value is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{number(value, 3)} {unit}"
        value /= 1000
    return f"{number(value, 3)} TB"


def duration(seconds: float | None) -> str:
    """The two greatest units: `3 h 20 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{number(seconds, 2)} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def count(value: int | None) -> str:
    """With thin spaces between thousands."""
    return NOTHING if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def timestamp(value: datetime | None) -> str:
    """Of a time, before a script has put it into the reader's zone."""
    return NOTHING if value is None else f"{value:%Y-%m-%d %H:%M} UTC"


def iso_timestamp(value: datetime) -> str:
    """For `datetime=`."""
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "size": size,
    "duration": duration,
    "count": count,
    "moment": timestamp,
    "exact": iso_timestamp,
}
