"""Terminal output: sanitized text and curves of characters."""

import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.cpu_limit import at_most
from trainyard.cli import output, tables
from trainyard.cli.output import LogPrinter, escape_name, format_duration, format_metric, one_line, sanitize
from trainyard.cli.plots import plot, sparkline
from trainyard.contract.sizes import format_size

FLOATS = st.lists(st.floats(), max_size=200)


class TestSanitize:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("\x1b[1;31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07text", "text"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x9b2Jgone", "gone"),
            ("\x1bPdevice\x1b\\x", "x"),
            ("10%\r20%\r\n", "10%\n20%\n"),
            ("a\x00\x08\x7f\u202e\u061cb", "ab"),
            ("tab\tand\nline", "tab\tand\nline"),
        ],
    )
    def test_escape_sequences_are_removed(self, text, expected):
        assert sanitize(text) == expected

    @given(st.text())
    def test_no_cursor_control_remains(self, text):
        sanitized = sanitize(text)
        assert not any((ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) <= 0x9F for c in sanitized)
        assert "\n" not in one_line(text)

    @settings(max_examples=30, deadline=None)
    @example(["\x90"], "")
    @example([" "], "x")
    @given(
        st.lists(
            st.sampled_from([*"\x1b\x90\x9b\x9d\x9c\r\n \t0;[]\\Px", "\x1b[", "\x1b]", "\u2028"]),
            min_size=1,
            max_size=3,
        ),
        st.sampled_from(["", "x", "\x1b", "\n"]),
    )
    def test_hostile_repetition_takes_linear_time(self, unit, end):
        text = "".join(unit) * 40_000 + end
        with at_most(2):
            sanitize(text), one_line(text)

    @given(st.text(st.sampled_from("ab \t\n\u2028")))
    def test_one_space_replaces_each_break_and_the_whitespace_around_it(self, text):
        assert one_line(text) == re.sub(r"\s*[\n\u2028]\s*", " ", text).rstrip()


def test_names_of_files_are_shown_with_escapes():
    assert escape_name("a\nb\x1b[2J\u202e\udcff ä.txt") == "a\\nb\\x1b[2J\\u202e\\udcff ä.txt"


class TestCurves:
    @given(FLOATS, st.integers(1, 40))
    def test_sparkline_accepts_any_values(self, values, width):
        assert len(sparkline(values, width)) == min(len(values), width)
        lines = plot(values, list(range(len(values))), width=width)
        assert len(lines) == (9 if values else 8)

    def test_shape(self):
        assert sparkline([0, 1, math.nan, 7]) == "▁▂x█"
        assert sparkline([5, 5]) == "▁▁"
        assert sparkline([1e308, 0, -1e308]) == "█▅▁"
        assert sparkline([1e308] * 9, width=3) == "▁▁▁"
        assert plot([1e308, -1e308], [1, 2], width=2, height=1)[0].endswith("┤█▁")
        assert plot([1, 2], [10, 20], width=4, height=2) == [
            "         2 ┤  ██",
            "         1 ┤▁▁██",
            "            step 10 20",
        ]


class TestFormatting:
    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [(0.4, "0 s"), (59.6, "1 min"), (125, "2 min 5 s"), (3600, "1 h"), (90061, "1 d 1 h"), (-5, "0 s")],
    )
    def test_duration(self, seconds, expected):
        assert format_duration(seconds) == expected

    @pytest.mark.parametrize(
        ("metric", "value", "expected"),
        [
            ("memory/host_peak_bytes", 370118656.0, "353 MiB"),
            ("memory/host_peak_bytes", "NaN", "nan"),
            ("memory/host_peak_bytes", None, "-"),
            ("perf/bytes_per_second", 370118656.0, "3.701e+08"),
        ],
    )
    def test_byte_metrics_are_formatted_as_sizes(self, metric, value, expected):
        assert format_metric(metric, value) == expected

    @pytest.mark.parametrize("whole", ["ty-main-0123456789abcdef", "step-0000000092"])
    def test_names_are_not_wrapped_in_a_narrow_table(self, whole, monkeypatch, capsys):
        monkeypatch.setattr(tables, "console", lambda: tables.TerminalConsole(width=40))
        output.print_table(("A", "B"), [(whole, "words that may be broken over several lines")])
        assert whole in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("count", "expected"),
        [
            *((0, "0 B"), (999, "999 B"), (999.6, "0.976 KiB"), (1536, "1.5 KiB")),
            *((1000 * 2**20, "0.977 GiB"), (3 * 2**40, "3 TiB")),
        ],
    )
    def test_size(self, count, expected):
        assert format_size(count) == expected


class TestLogPrinter:
    PARTS = ("a\r\nbar 1%", "\rbar 2%\r", "bar 100%\r", "\nend\x1b[31m", " red\n10%\r20%")

    def printed(self, capsys: pytest.CaptureFixture[str]) -> str:
        with LogPrinter() as printer:
            for part in self.PARTS:
                printer.write(part)
        return capsys.readouterr().out

    def test_a_file_gets_the_last_state_of_each_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.printed(capsys) == "a\nbar 100%\nend red\n20%"

    def test_a_terminal_overwrites_lines(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "is_terminal", lambda: True)
        assert self.printed(capsys) == "a\nbar 1%\rbar 2%\rbar 100%\r\nend red\n10%\r20%"
