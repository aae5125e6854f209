"""Summarizes a failure: the user's frame, the last output, and fixes in the spec. Pure functions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.contract.problems import SpecError
from trainyard.contract.proposals import accepted_fixes, start_of_fork, value_at
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.wire.jobs import FailureSummary, Fix, Frame
from trainyard.contract.wire.reports import DIVERGED, UNNAMED_FAILURE, Failure

_LAST_LINES = 10
_MAX_LINE = 500
_HEADER = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,200})$')
_START = re.compile(r"^.{0,40}INFO rank \d+, attempt \d+(?:, restart \d+)?, pid \d+\n", re.MULTILINE)
"""The line with which the log of a rank begins, and again after each restart."""
_UPLOADED = re.compile(r"/(?:attempts/[^/]+/code|job_[0-9a-z]+/work)/(?P<path>.+)$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<|/worker/(?:\w+/)*\w+\.py$|/trainyard/\w+\.py$")
_FIELD = r"[a-z_]+(?:\.[a-z_]+)*"
_OF_HINT = re.compile(
    rf"\(\d\) (?P<field>{_FIELD}): (?P<value>[\w.+-]{{1,40}})"
    rf"(?: with (?P<other>{_FIELD}):? (?P<of_other>[\w.+-]{{1,40}}))?(?: \((?P<note>[^()]*)\))?"
)
_DOUBLED = ("gpus", "resources.memory_gb_per_gpu")
"""The fields that a fix at most doubles."""
_FIXABLE = frozenset(
    {
        "batch.micro_size",
        "activation_checkpointing",
        "precision",
        "strategy",
        "lora_rank",
        "lora.base_dtype",
        "fsdp.cpu_offload",
        *_DOUBLED,
    }
)
"""The fields of memory hints whose value suffices as a fix. A hint comes from the job, so others are ignored."""


def summarize_failure(
    failure: Failure, spec: Mapping[str, Any], *, job_id: str = "", step: int | None = None
) -> FailureSummary:
    """Return the summary that a person reads first.

    Args:
        job_id: The failed job.
        step: The step of its newest checkpoint, from which a copy with a fix starts.
    """
    text = failure.traceback
    # Without a known exception, a traceback before the end of the output is that of an exception that was caught.
    is_traceback = _HEADER in text and (failure.type != UNNAMED_FAILURE or _ends_with_traceback(text))
    diverged = failure.type == DIVERGED
    return FailureSummary(
        frame=user_frame(text) if is_traceback else None,
        is_traceback=is_traceback,
        last_lines=last_lines(text),
        fixes=_accepted(
            spec, [*_lower_rate(spec)] if diverged else [*_fixes_of_hint(failure.hint or "")], job_id, step
        ),
        repeats=failure.final,
    )


def _accepted(spec: Mapping[str, Any], fixes: Sequence[Fix], job_id: str, step: int | None) -> list[Fix]:
    """Return the fixes with which a copy of the spec is accepted, as differences from it."""
    if not fixes:
        return []
    try:
        source = parse_stored_spec(spec)
    except SpecError:
        return []
    bounded = [fix for fix in fixes if _is_bounded(fix.fields, spec)]
    return accepted_fixes(source, bounded, start_of_fork(source, job_id, step))


def _is_bounded(fields: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Return whether a fix takes at most twice the resources; a hint comes from the job."""
    for name in _DOUBLED:
        if name in fields:
            now = value_at(spec, name)
            if not isinstance(now, int) or not isinstance(fields[name], int) or fields[name] > 2 * now:
                return False
    return True


def last_lines(text: str) -> list[str]:
    """Return the last lines that are neither empty nor part of a traceback, of the last execution only."""
    *_, last = _START.split(text)
    lines = [line.rstrip()[:_MAX_LINE] for line in _outside_tracebacks(last.splitlines())]
    return [line for line in lines if line][-_LAST_LINES:]


def _outside_tracebacks(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that belong to no traceback, whose last line is the first that is not indented: the exception."""
    in_traceback = False
    for line in lines:
        text = _RANK_PREFIX.sub("", line)
        if _HEADER in text:
            in_traceback = True
        elif in_traceback:
            in_traceback = not text or text.startswith(" ")
        elif text and text not in _CHAINED:
            yield line


def _ends_with_traceback(text: str) -> bool:
    return not list(_outside_tracebacks(text[text.rfind(_HEADER) :].splitlines()))


def user_frame(text: str) -> Frame | None:
    """Return the last frame of the last traceback that is neither in a library nor in Trainyard."""
    start = text.rfind(_HEADER)
    if start < 0:
        return None
    lines = _RANK_PREFIX.sub("", text[start:]).splitlines()
    for number in range(len(lines) - 1, -1, -1):
        match = _FRAME.match(lines[number])
        if match is None:
            continue
        uploaded = _UPLOADED.search(match["file"])
        if uploaded is None and _LIBRARY.search(match["file"]):
            continue
        return Frame(
            file=uploaded["path"] if uploaded else match["file"],
            line=int(match["line"]),
            function=match["function"],
            source=_source(lines[number + 1 :]),
        )
    return None


def _source(following: Sequence[str]) -> str:
    """Return the source below a frame: indented by four, with marks of carets and tildes."""
    source = []
    for line in following[:4]:
        if not line.startswith("    ") or _FRAME.match(line):
            break
        source.append(line[4:_MAX_LINE].rstrip())
    return "\n".join(source)


def _fixes_of_hint(hint: str) -> Iterator[Fix]:
    for match in _OF_HINT.finditer(hint):
        texts = {match["field"]: match["value"]} | ({match["other"]: match["of_other"]} if match["other"] else {})
        if texts.keys() <= _FIXABLE:
            fields = {field: _scalar(text.rstrip(".")) for field, text in texts.items()}
            yield Fix(fields=fields, note=match["note"] or "")


def _scalar(text: str) -> Any:
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)


def _lower_rate(spec: Mapping[str, Any]) -> Iterator[Fix]:
    """Yield a tenth of the learning rate, and the clipping of gradients if there is none."""
    optimizer = spec.get("optimizer")
    if not isinstance(optimizer, Mapping):
        return
    rate = optimizer.get("lr")
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < float("inf"):
        yield Fix(fields={"optimizer.lr": float(f"{rate / 10:.3g}")}, note="a tenth")
    if optimizer.get("clip_norm", "absent") is None:
        yield Fix(fields={"optimizer.clip_norm": 1.0}, note="limits each update")
