"""Counts the examples of a source that the maximum length of a row cuts or drops, for the user."""

from dataclasses import asdict, dataclass
from typing import Any

from worker.core.errors import RefusedError
from worker.data.notices import Notice

_HINT = "Shorten the examples, or raise data.max_length if the model's context is larger."


@dataclass(frozen=True)
class CutExamples:
    """Counts of a source's examples. An example is longer than a row, has no learned token, or is used whole."""

    examples: int
    truncated: int = 0
    """Longer than a row; the beginning is used."""
    too_long: int = 0
    """Longer than a row, and left out: the learned tokens begin after the row's end."""
    empty: int = 0
    """Left out: no token of them is learned, at any length."""
    longest: int = 0
    """Tokens of the longest example."""
    equal: int = 0
    """Pairs that are left out: the chosen and the rejected answer are the same."""
    equal_when_cut: int = 0
    """Pairs that are left out: the answers are the same up to the row's end."""

    def facts(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return asdict(self)

    def notices(self, section: str, length: int) -> list[Notice]:
        """Return the notices for the user about rows of at most `length` tokens."""
        notices = []
        if longer := self.truncated + self.too_long:
            parts = [f"{_counted(self.truncated)} truncated"] if self.truncated else []
            if self.too_long:
                parts.append(f"{_counted(self.too_long)} left out, with nothing to learn in the first {length}")
            verb = "is" if longer == 1 else "are"
            message = (
                f"{section}: of {self.examples} examples, {longer} {verb} longer than {length} tokens (the longest has "
                f"{self.longest}): {', and '.join(parts)}"
            )
            data = {"examples": longer, "truncated": self.truncated, "left_out": self.too_long, "max_length": length}
            notices.append(Notice("data_truncated", message, "warning", data | {"longest": self.longest}))
        if self.empty:
            message = (
                f"{section}: of {self.examples} examples, {_counted(self.empty)} left out: they have nothing to learn"
            )
            notices.append(Notice("data_without_target", message, "warning", {"left_out": self.empty}))
        if count := self.equal + self.equal_when_cut:
            message = (
                f"{section}: of {self.examples} pairs, {_counted(count)} left out, since nothing can be learned from a "
                f"chosen and a rejected answer that are equal: {self._equal_text(length)}"
            )
            data = {"left_out": count, "equal": self.equal, "equal_when_cut": self.equal_when_cut, "max_length": length}
            notices.append(Notice("data_without_preference", message, "warning", data))
        return notices

    def _equal_text(self, length: int) -> str:
        within = f"{self.equal_when_cut} in the first {length} tokens"
        parts = [f"{self.equal} as a whole"] if self.equal else []
        return " and ".join(parts + ([within] if self.equal_when_cut else []))

    def refusal(self, section: str, files: str, length: int, which: str = "") -> RefusedError:
        """Return the error about a source without usable examples.

        Args:
            which: Which examples of the files are meant, such as ` that is not held out`.
        """
        if not self.examples:
            return RefusedError(f"{section}: {files} holds no example{which}")
        if equal := self.equal + self.equal_when_cut:
            others = self.examples - equal
            rest = f", and {others} more have no token to learn in the first {length}" if others else ""
            return RefusedError(
                f"{section}: {files} holds no pair to learn from{which}: the chosen and the rejected answer are equal "
                f"in {equal} of {self.examples} pairs ({self._equal_text(length)}){rest}",
                _HINT if self.equal_when_cut else "Give pairs of different answers.",
            )
        if not self.too_long:
            return RefusedError(f"{section}: {files} holds no example with a target token{which}")
        longer = f"all {self.examples} examples are" if self.examples > 1 else "its only example is"
        if self.empty:
            longer = f"of {self.examples} examples, {self.empty} have no target token, and the others are"
        problem = f"{longer} longer than {length} tokens, with nothing to learn in the first {length}"
        return RefusedError(
            f"{section}: {files} holds nothing to learn{which}: {problem}; the longest has {self.longest} tokens", _HINT
        )


def _counted(count: int) -> str:
    return f"{count} {'was' if count == 1 else 'were'}"
