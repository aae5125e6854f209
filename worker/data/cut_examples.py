"""What the maximum length of a row does to the examples of a source, for the user."""

from dataclasses import asdict, dataclass
from typing import Any

from worker.core.errors import RefusedError
from worker.data.notices import Notice

_HINT = "Shorten the examples, or raise data.max_length if the model's context is larger."


@dataclass(frozen=True)
class CutExamples:
    """Counts of a source's examples. One is longer than a row, or has nothing to learn, or is used whole."""

    examples: int
    truncated: int
    """Longer than a row; the beginning is used."""
    too_long: int
    """Longer than a row, and left out: what is learned begins after the row's end."""
    empty: int
    """Left out: no token of them is learned, at any length."""
    longest: int
    """Tokens of the longest example."""

    def facts(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return asdict(self)

    def notices(self, section: str, length: int) -> list[Notice]:
        """Return what a user should know of rows of at most `length` tokens."""
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
        return notices

    def refusal(self, section: str, files: str, length: int, which: str = "") -> RefusedError:
        """Return the error about a source of which no example is left.

        Args:
            which: Which examples of the files are meant, such as ` that is not held out`.
        """
        if not self.examples:
            return RefusedError(f"{section}: {files} holds no example{which}")
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
