"""Names from strangers cannot control a terminal, and numbers have meaningful digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.frame.estimate import Estimate
from profkit.show.figures import interval_range, share_range, whole_percent
from profkit.text import (
    byte_size,
    did_you_mean,
    duration,
    fold,
    percent,
    plural,
    safe_text,
    signed,
    significant,
    table,
)

INJECTIONS = {
    "OSC: window title": "\x1b]0;owned\x07",
    "OSC: clipboard": "\x1b]52;c;cm0gLXJmIC8=\x1b\\",
    "OSC: link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "CSI: clear": "\x1b[2J\x1b[H",
    "CSI: colour": "\x1b[31mred\x1b[0m",
    "CSI: report": "\x1b[6n",
    "DCS": "\x1bP$q\x1b\\",
    "C1: CSI": "\x9b31m",
    "C1: OSC": "\x9d0;owned\x9c",
    "C1: next line": "a\x85b",
    "NUL": "a\x00b",
    "backspace": "safe\b\b\b\bevil",
    "bell": "\x07",
    "delete": "a\x7fb",
    "carriage return": "good\rbad",
    "line feed": "one\ntwo",
    "tab": "a\tb",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "bidi: override": "user\u202etxt.exe",
    "bidi: isolate": "\u2066a\u2069",
    "bidi: mark": "a\u200fb\u061cc",
    "zero width: space": "a\u200bb",
    "zero width: joiner": "a\u200db",
    "zero width: no-break": "\ufeffa",
    "zero width: word joiner": "a\u2060b",
    "invisible: soft hyphen": "pass\u00adword",
    "invisible: grapheme joiner": "a\u034fb",
    "invisible: hangul filler": "a\u3164b\u115f",
    "invisible: mongolian": "a\u180eb\u180b",
    "invisible: tag": "a\U000e0041b",
    "invisible: variation selector": "a\ufe0fb\U000e0100",
    "half a pair": "a\udcffb\ud800",
    "private use": "a\ue000b",
    "no character": "a\uffffb",
}
PLAIN = (
    "",
    "resnet50",
    "void f<int>[/b](x)",
    "naïve",
    "日本",
    "🚀",
    "a\u0301",
    "void at::native::reduce_kernel<512, 1>(int*)",
    "\\x1b",
)


@pytest.mark.parametrize("text", INJECTIONS.values(), ids=INJECTIONS.keys())
def test_what_could_steer_a_terminal_is_shown_instead(text: str) -> None:
    shown = safe_text(text)
    assert shown.isprintable()
    assert shown != text
    assert "\\" in shown
    shown.encode()


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_is_left_as_it_is(text: str) -> None:
    assert safe_text(text) == text


@given(st.text())
def test_text_that_was_made_safe_is_safe(text: str) -> None:
    shown = safe_text(text)
    assert shown.isprintable()
    assert safe_text(shown) == shown
    assert all(char in shown for char in text if char.isascii() and char.isprintable())


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0, 3, "0"),
        (-0.0, 3, "0"),
        (1, 3, "1.00"),
        (1.2345, 3, "1.23"),
        (9.996, 3, "10.0"),
        (99.96, 3, "100"),
        (999.6, 3, "1,000"),
        (12.345, 3, "12.3"),
        (123.45, 3, "123"),
        (123_456.7, 3, "123,457"),
        (123_456.7, 6, "123,457"),
        (-1.5, 2, "-1.5"),
        (0.00012345, 3, "0.000123"),
        (1e-12, 3, "0.00000000000100"),
        (1e21, 3, "1,000,000,000,000,000,000,000"),
        (math.nan, 3, "-"),
        (math.inf, 3, "-"),
        (-math.inf, 3, "-"),
    ],
)
def test_a_number_has_the_digits_that_were_asked_for(value: float, digits: int, shown: str) -> None:
    assert significant(value, digits) == shown


@given(st.floats(1e-6, 1e9), st.integers(1, 6))
def test_a_shown_number_is_the_number_to_its_digits(value: float, digits: int) -> None:
    shown = significant(value, digits)
    assert "e" not in shown
    assert float(shown.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 s"),
        (0.5, "0.500 ns"),
        (1, "1.00 ns"),
        (999, "999 ns"),
        (999.96, "1.00 us"),
        (1_500, "1.50 us"),
        (999_960, "1.00 ms"),
        (42_706_000, "42.7 ms"),
        (1_000_000_000, "1.00 s"),
        (90_000_000_000, "90.0 s"),
        (3_600e9, "3,600 s"),
        (-2_500_000, "-2.50 ms"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(ns: float, shown: str) -> None:
    assert duration(ns) == shown


@pytest.mark.parametrize(
    ("share", "digits", "shown"),
    [
        (0, 1, "0.0 %"),
        (0.5, 1, "50.0 %"),
        (1, 0, "100 %"),
        (0.00061, 3, "0.061 %"),
        (-0.0001, 1, "0.0 %"),
        (-0.1, 1, "-10.0 %"),
        (math.nan, 1, "-"),
    ],
)
def test_a_share_is_shown_in_percent(share: float, digits: int, shown: str) -> None:
    assert percent(share, digits) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (5, "5 B"),
        (999, "999 B"),
        (1_000, "1.00 KB"),
        (64_000_000, "64.0 MB"),
        (999_960, "1.00 MB"),
        (25e9, "25.0 GB"),
        (2.5e12, "2.50 TB"),
        (2.5e15, "2,500 TB"),
        (-2_000, "-2.00 KB"),
        (math.nan, "-"),
    ],
)
def test_bytes_have_the_unit_that_suits_them(count: float, shown: str) -> None:
    assert byte_size(count) == shown


def test_the_nearest_word_is_offered_where_one_is_near() -> None:
    assert did_you_mean("reprot", ["report", "trace"]) == "; did you mean 'report'?"
    assert did_you_mean("report", ["report", "trace"]) == ""
    assert did_you_mean("xyz", ["report"]) == ""


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (1_200, "1,200 ranks")]
)
def test_a_count_has_its_plural(count: int, shown: str) -> None:
    assert plural(count, "rank") == shown


def test_a_tables_columns_are_aligned() -> None:
    assert (
        table([["a", "1", "x"], ["bb", "22", ""]], right=frozenset({1})) == "  a    1  x\n  bb  22"
    )
    assert table([]) == ""


@pytest.mark.parametrize(
    ("low", "high", "show", "shown"),
    [
        (172_980_000, 173_040_000, duration, "172.98 ms to 173.04 ms"),
        (172_000_000, 174_000_000, duration, "172 ms to 174 ms"),
        (-50_000, 50_000, signed, "-50.0 us to +50.0 us"),
        (1_000_100, 1_000_200, signed, "+1.0001 ms to +1.0002 ms"),
        (0.04012, 0.04018, percent, "4.01 % to 4.02 %"),
        (0.9804, 0.9806, whole_percent, "98.04 % to 98.06 %"),
        (1_383.1, 1_383.4, significant, "1,383.1 to 1,383.4"),
        (200e6, 200e6, duration, "200 ms to 200 ms"),
        (200e6, 200e6 + 1e-3, duration, "200 ms to 200 ms"),
    ],
)
def test_the_ends_of_an_interval_are_told_apart(
    low: float, high: float, show: Callable[..., str], shown: str
) -> None:
    assert interval_range(Estimate(low, low, high), show) == shown


def test_two_shares_have_one_percent_sign() -> None:
    assert share_range(Estimate(0.5, 0.41, 0.62)) == "41.0 to 62.0 %"
    assert share_range(Estimate(0.5, 0.50011, 0.50012)) == "within 0.1 %"


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    for width in range(8, 30):
        lines = fold("it takes 24.1 ms, which is 49.9 % of 2 GB in all", "", "", width).split("\n")
        assert not any(line.split()[0].rstrip(",") in {"ms", "%", "GB"} for line in lines), lines
