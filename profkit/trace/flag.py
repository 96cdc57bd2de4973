"""What is to be known of a run's figures before one relies on them."""

from __future__ import annotations

from enum import Enum

from profkit.text import safe_text


class FlagKind(str, Enum):
    """What follows from a flag."""

    DOUBT = "doubt"
    """Something is wrong with the source, and may be with figures."""
    NOTE = "note"
    """How the source was read; nothing is wrong."""
    NO_SAMPLES = "no_samples"
    """The source does not say how many samples a step trains on."""
    BAD_TIMES = "bad_times"
    """Impossible times were dropped or repaired: no comparison with the run has a verdict."""
    UNRECORDED = "unrecorded"
    """More processes have trained than are recorded."""


HARMLESS = frozenset([FlagKind.NOTE, FlagKind.NO_SAMPLES])
"""Kinds of flags that are no doubts."""


class Flag(str):
    """The words of a flag, with the kind by which code decides. Other strings are doubts."""

    __slots__ = ("kind",)
    kind: FlagKind

    def __new__(cls, text: str, kind: FlagKind | None = None) -> Flag:
        flag = super().__new__(cls, text)
        own = text.kind if isinstance(text, Flag) else FlagKind.DOUBT
        flag.kind = kind or own
        return flag

    def __reduce__(self) -> tuple[type[Flag], tuple[str, FlagKind]]:
        return Flag, (str(self), self.kind)

    def said_as(self, text: str) -> Flag:
        """Return a flag of the same kind in other words."""
        return Flag(text, self.kind)

    @property
    def safe(self) -> Flag:
        """The flag with nothing in its words that steers a terminal."""
        return self.said_as(safe_text(self))
