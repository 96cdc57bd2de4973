"""Text for people: safe to print, folded to a screen, figures with sensible digits."""

from __future__ import annotations

import difflib
import math
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence

WIDTH = 100
"""Columns of a screen. Lines that are meant to be copied, such as a path, may be longer."""

_BIDI_AND_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


_PASSWORD = re.compile(r"(?<=://)[^/\s]*@")
"""The name and the password in an address."""


# -- words -----------------------------------------------------------------------------------------


def safe_text(value: str) -> str:
    """Return `value` with each character that could steer a terminal shown as an escape.

    Names of kernels, files and threads come from strangers: control characters, bidirectional
    marks and invisible characters are made visible, everything else is left as it is.
    """
    if value.isprintable() and not _BIDI_AND_INVISIBLE.search(value):
        return value
    return "".join(map(_visible, value))


def without_password(text: str) -> str:
    """Return a text in which no address shows whose it is, or its password."""
    return _PASSWORD.sub("", text)


def _visible(char: str) -> str:
    if char.isprintable() and not _BIDI_AND_INVISIBLE.match(char):
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def shell_word(value: str) -> str:
    """Return a path as a word that can be pasted into a shell, safe to print."""
    if safe_text(value) == value:
        return shlex.quote(value)
    word = ""
    for char in value:
        if char in "\\'":
            word += f"\\{char}"
        elif safe_text(char) == char:
            word += char
        else:
            word += "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
    return f"$'{word}'"


_UNIT_AHEAD = re.compile(r"(?<=\d) (?=(?:%|[num]?s|x|[KMGT]?B|MHz|W|samples/s)(?![\w]))")
_NO_BREAK = "\x1f"
"""Stands for a space while lines are broken. No safe text has this character."""


def fold(text: str, indent: str = "  ", rest: str | None = None, width: int = WIDTH) -> str:
    """Return `text`, made safe, in lines that fit a screen.

    The first line begins with `indent`, the others with `rest` (default: two columns more).
    """
    if rest is None:
        rest = indent + "  "
    return "\n".join(wrap(safe_text(text), width, indent, rest))


def wrap(text: str, width: int, indent: str = "", rest: str = "") -> list[str]:
    """Return the lines of a safe text; a number and its unit stay on one line."""
    wrapper = textwrap.TextWrapper(width, indent, rest, break_on_hyphens=False)
    lines = wrapper.wrap(_UNIT_AHEAD.sub(_NO_BREAK, text))
    return [line.replace(_NO_BREAK, " ") for line in lines]


def shorten(text: str, longest: int) -> str:
    """Return `text`, made safe, with an ellipsis for what is beyond `longest` characters."""
    shown = safe_text(text)
    if len(shown) <= longest:
        return shown
    return shown[: longest - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'X'?` for the nearest known word, or an empty text."""
    known = list(known)
    if word in known:  # then it is not the word that is wrong
        return ""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


# -- figures ---------------------------------------------------------------------------------------

MOST_DIGITS = 9
"""Bounds that are equal in this many digits differ by rounding only."""


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with this many significant digits, never in scientific notation.

    All digits before the decimal point are shown.
    """
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(_rounded(value, digits))))
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def amount(value: float) -> str:
    """Return a count: a whole number as it is, any other with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else significant(value, 4)


def _rounded(value: float, digits: int) -> float:
    """Round before a unit is chosen: 9.996 becomes 10.0, and 999.96 us becomes 1.00 ms."""
    return float(f"{value:.{digits - 1}e}")


_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def duration(ns: float, digits: int = 3) -> str:
    """Return a duration in the unit that suits its size."""
    if not math.isfinite(ns):
        return "-"
    if ns == 0:
        return "0 s"
    for scale, unit in _UNITS:
        if abs(_rounded(ns, digits)) >= scale:
            return f"{significant(ns / scale, digits)} {unit}"
    return f"{significant(ns, digits)} ns"


def percent(share: float, digits: int = 1) -> str:
    if not math.isfinite(share):
        return "-"
    without_minus_zero = round(100 * share, digits) + 0.0
    return f"{without_minus_zero:.{digits}f} %"


def signed(value: float, show: Callable[..., str] = duration, **digits: int) -> str:
    """Return `value` with its sign, also if it is above zero."""
    return ("+" if value > 0 else "") + show(value, **digits)


def low_to_high(low: float, high: float, show: Callable[..., str]) -> str:
    """Return the bounds of an interval, with as many digits as it takes to tell them apart.

    `show` is a function of this module that takes `digits`.
    """
    texts = usual = show(low), show(high)
    for digits in range(2, MOST_DIGITS + 1):
        if texts[0] != texts[1]:
            break
        finer = show(low, digits=digits), show(high, digits=digits)
        if len(finer[0]) > len(usual[0]):  # else these are fewer digits than usual
            texts = finer
    return " to ".join(usual if texts[0] == texts[1] else texts)


def byte_size(count: float) -> str:
    """Return a number of bytes in the decimal unit that suits its size."""
    if not math.isfinite(count):
        return "-"
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if abs(_rounded(count, 3)) < 1000:
            return f"{significant(count)} {unit}"
    return f"{significant(count / 1000)} TB"


def bytes_per_second(rate: float) -> str:
    return f"{byte_size(rate)}/s"


# -- tables ----------------------------------------------------------------------------------------


def table(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  "
) -> str:
    """Return rows in aligned columns; `right` holds the columns that are aligned to the right."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.rjust(width) if column in right else cell.ljust(width))
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)
