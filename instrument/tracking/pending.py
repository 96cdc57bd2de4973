"""What has come from a loop of which it is not known yet whether it trains on it, or whether it is the loop that trains.

Batches and the rows of waits, copies and forwards wait until gradients are computed, or until the next batch is
waited for with nothing of training before it. And until a thread has trained, the rows of any may be thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Event, Keep, Row, SpanRow, TimedRow
from profkit.vocab import Phase

EVALUATION = "evaluation"

MOST_EARLY = 10_000
"""Rows that are kept before anything trains: of a process that only infers, the last ones."""

MOST_IN_A_ROW = 1_000
"""How many batches a loop fetches for one step at most: one that has taken more, and called no model, does not train on them."""

MOST_AHEAD = 1
"""How many batches a loader is ahead of its trainer at most: more than these have been trained on."""

_OTHER = Phase.OTHER.value

PHASE, DEPTH = SpanRow._fields.index("phase"), SpanRow._fields.index("depth")
"""Positions in a row of `spans`, which may be a plain tuple."""


class Pending:
    """Rows and batches of one loop whose fate is open; what is decided goes to `keep`."""

    __slots__ = ("_append", "_early", "_keep", "_recorder", "batches", "decided", "rows", "trained")

    def __init__(self, recorder: Recorder, keep: Keep) -> None:
        self._recorder = recorder
        self._append: Callable[[Row], None] = recorder.append_span
        self._keep = keep
        self.decided = False
        """Whether it is known that this is the loop that trains."""
        self._early: deque[TimedRow] = deque(maxlen=MOST_EARLY)
        self.rows: list[TimedRow] = []
        """What lies since the last batch was waited for."""
        self.batches: list[int] = []
        """The samples of each batch that has come, and may be trained on or not."""
        self.trained: list[int] = []
        """The samples of each batch that the open step trains on."""

    def pass_on(self, row: Row, start: Event | None, end: Event | None) -> None:
        """A row whose phase is known: it is kept, or waits until it is decided that this is the loop that trains."""
        if self.decided:
            self._keep(row, start, end)
        else:
            self._early.append((row, start, end))

    def settle(self, *, evaluation: bool) -> None:
        """The loop trains on what has come, or it has evaluated."""
        if not evaluation:
            self.trained += self.batches
        self.batches.clear()
        if not self.rows:
            return
        recorder = self._recorder
        if (
            self.decided
            and not evaluation
            and recorder.device is None
            and recorder.span_copies is None
        ):
            for row, _, _ in self.rows:
                self._append(row)
        else:
            pass_on = self._keep if self.decided else self.pass_on
            for row, start, end in self.rows:
                pass_on(as_other(row, EVALUATION) if evaluation else row, start, end)
        self.rows.clear()

    def release(self) -> None:
        """Keep what came early: this is the loop that trains, or there will be no other."""
        for row, start, end in self._early:
            self._keep(row, start, end)
        self._early.clear()

    def take_samples(self, batches: int | None = None) -> int:
        """The samples of the first so many batches that are trained on, or of all; the others wait for the next step."""
        count = (
            len(self.trained) if batches is None else max(batches, len(self.trained) - MOST_AHEAD)
        )
        taken = sum(self.trained[:count])
        del self.trained[:count]
        return taken

    def forget(self) -> None:
        """What has come is none of the loop's."""
        for come in (self.rows, self.batches, self.trained, self._early):
            come.clear()


def as_other(row: Row, name: str = "") -> Row:
    """The row of a part that is no training; what is inside of one keeps its name."""
    span = SpanRow(*row)
    if name and not span.depth:
        return span._replace(phase=_OTHER, name=name)
    return span._replace(phase=_OTHER)
