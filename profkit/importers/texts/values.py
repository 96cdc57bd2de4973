"""The values that a text, a command or a log states, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from profkit.text import percent

MIXED, FULL = "mixed precision", "fp32"
CARDS_OF_NODE = "cards of the node that prints"
"""The words of a number of cards that is perhaps not that of all nodes."""


class What(str, Enum):
    """The kinds of values."""

    CARDS = "cards"
    BATCH = "batch"
    PRECISION = "precision"
    LOSS = "loss"
    THROUGHPUT = "throughput"
    TIME = "time to train"
    ACCURACY = "accuracy"
    SPEED_UP = "speed-up"


class Of(str, Enum):
    """The cards that a batch is of."""

    CARD = "per card"
    ALL = "in total"
    UNSAID = ""


@dataclass(frozen=True)
class Value:
    """A value, its place, and the words that state it."""

    what: What
    value: float | str
    file: str
    line: int
    """0 for a file's name."""
    words: str
    of: Of = Of.UNSAID

    @property
    def shown(self) -> str:
        """The value as a sentence has it."""
        if isinstance(self.value, str):
            return self.value
        if self.what is What.ACCURACY:
            return percent(self.value, 2)
        unit = {What.TIME: " s", What.CARDS: " card" if self.value == 1 else " cards"}
        return f"{self.value:,.10g}{unit.get(self.what, '')}"

    @property
    def place(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}"
        return f"the name of {self.file}"


class Outcome(str, Enum):
    """The result of a check. The values are stable."""

    CONTRADICTS = "contradicts"
    AGREES = "agrees"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Finding:
    """One stated value, compared with what a command or a log says."""

    outcome: Outcome
    stated: Value
    found: tuple[Value, ...]
    why: str = ""

    @property
    def words(self) -> str:
        """The finding as a sentence."""
        others = []
        for each in self.found:
            words = f" ({each.words})" if each.words else ""
            others.append(f"{each.place} says {each.shown}{words}")
        said = f"{self.stated.place} states {self.stated.shown} ({self.stated.words})"
        return "; ".join(filter(None, [said, ", ".join(others), self.why]))


def distinct(values: Iterable[Value]) -> list[Value]:
    """Return the first of equal values, in order."""
    kept: dict[tuple[What, float | str], Value] = {}
    for each in values:
        kept.setdefault((each.what, each.value), each)
    return list(kept.values())
