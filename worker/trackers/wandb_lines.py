"""The history lines of a W&B run, each once, from whichever source has them first: the client's stream or its file."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from worker.trackers.wandb_file import Document, RunFile
from worker.trackers.wandb_history import integer

MAX_LINES = 200_000
"""Lines of a run that can be read again, to write its curves again."""


class RunLines:
    """The lines that are stored. A line is identified by the client's count of steps, which is in both sources."""

    def __init__(self) -> None:
        self.files: list[RunFile] = []
        """The files of the run. A program that begins the run again in the same execution writes another file."""
        self._stored = array("q")
        self._streamed: dict[int, Document] = {}
        """Stored lines that the file did not have yet: the client fills blocks before it writes them."""
        self._count = 0

    def attach(self, file: RunFile) -> None:
        """Add a file. A second file has the lines of a run that was begun again, whose steps may repeat."""
        if self.files:
            del self._stored[:]
        self.files.append(file)

    def new(self, lines: Iterable[Document], first: int | None = None) -> dict[int, Document]:
        """Return the lines that are not stored, by their identity.

        Args:
            first: The position of the first line, for lines of the stream. It identifies lines without a step.
        """
        unknown: dict[int, Document] = {}
        for position, line in enumerate(lines, first or 0):
            step = integer(line.get("_step"))
            if (step is None or step < 0) and first is not None:
                step = -1 - position
            if step is not None and not self._has(step):
                unknown[step] = line
        return unknown

    def are_late(self, new: Iterable[int]) -> bool:
        """Return whether a new line precedes a stored line: where an axis repeats, the last value counts."""
        return bool(self._stored) and any(0 <= step < self._stored[-1] for step in new)

    def add(self, lines: dict[int, Document]) -> None:
        """Take lines of the stream as stored."""
        self._note(lines)
        if self._count <= MAX_LINES:
            self._streamed |= lines

    def add_from_file(self, lines: Iterable[Document], new: dict[int, Document]) -> None:
        """Take lines of the file as stored, of which some may be new."""
        self._note(new)
        for line in lines:
            step = integer(line.get("_step"))
            if step is not None:
                self._streamed.pop(step, None)

    def all_stored(self) -> list[Document] | None:
        """Return all stored lines; None if not all of them can be read again."""
        if self._count > MAX_LINES:
            self._streamed.clear()
            return None
        lines = [*self._of_files(), *(self._streamed[step] for step in sorted(self._streamed))]
        return lines if len(lines) >= self._count else None

    def _of_files(self) -> Iterator[Document]:
        for file in self.files:
            yield from (line for line in file.lines() if integer(line.get("_step")) is not None)

    def _has(self, step: int) -> bool:
        index = bisect_left(self._stored, step)
        return index < len(self._stored) and self._stored[index] == step

    def _note(self, lines: Iterable[int]) -> None:
        for step in lines:
            self._stored.insert(bisect_left(self._stored, step), step)
            self._count += 1
