"""Replays what hooks have noted of a step to the tracker, as if it had been reported at once.

In a loop that trains, boundaries of phases are noted (`notes.py`) and replayed when the next batch
is waited for. A caller that asks the tracker or reports to it before then has it catch up first, so
that nobody sees the difference.
"""

# ruff: noqa: SLF001  # the tracker and its borders are one thing

from __future__ import annotations

from typing import Any

from profkit.instrument.guard import report_failure
from profkit.instrument.loading.loaders import make_rows
from profkit.instrument.rows import Followed
from profkit.instrument.tracking.notes import (
    BACKWARD,
    DATA,
    END,
    FETCHED,
    FORWARD,
    OPTIMIZER,
    ROWS,
    SKIPPED,
    STEP,
    Note,
    Notes,
)

MOST_AHEAD = 3
"""Maximum number of unmeasured steps that are replayed together with the one before them."""

LONG_STEP_NS = 250_000_000
"""Longer steps are reported at once, so that a killed job loses no more than the last second."""


def _find_compiled() -> type[Notes]:
    """Return the notes in C, or those in Python if profkit was installed without a compiler."""
    try:
        from profkit.instrument.tracking import _notes
    except ImportError:
        return Notes
    return _notes.Notes


CompiledNotes = _find_compiled()


class Borders:
    """The notes of one tracker, and its regions that were opened by a note."""

    __slots__ = ("_open", "_tracker", "notes")

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self.notes: Notes = CompiledNotes(tracker, tracker.recorder._clock)
        self._open: list[tuple[int, Followed | None]] = []

    def may_open(self) -> bool:
        """Not where ranges are opened too, in long steps, and where nothing is recorded any more."""
        recorder = self._tracker.recorder
        return (
            recorder._ranges is None
            and recorder.last_step_ns < LONG_STEP_NS
            and recorder.takes_rows
        )

    def open(self, thread: int) -> None:
        """A loop that trains waits for its next batch: what comes now in this thread may be noted."""
        recorder = self._tracker.recorder
        ahead = (
            None
            if recorder.recording
            else 0
            if self._tracker._explicit
            else recorder.count_switched_off(MOST_AHEAD)
        )
        self.notes.open(thread, None if recorder.device is None else recorder._mark, ahead)
        if self._open:
            opened = self._tracker._opened
            self._open = [(region, span) for region, span in self._open if span in opened]

    def forget(self) -> None:
        """What was noted is none of the loop's."""
        self.notes.close()
        self.notes.take()
        self._open.clear()

    def tell(self) -> None:
        """Go through what has been noted. What cannot be told is lost, and does not come again."""
        try:
            self._tell()
        except Exception as failure:  # noqa: BLE001  # the border to the job
            report_failure("borders", failure)
            self.notes.take()

    def look_up(self, region: int) -> Followed | None:
        """The region of this number that was opened by a note, and has not been found yet."""
        return next((span for number, span in self._open if number == region), None)

    def _tell(self) -> None:
        tracker = self._tracker
        nest = tracker._nest
        while self.notes and not (tracker._opened or tracker._inside or self._open):
            plain = self.notes.take_plain(
                tracker.recorder.step_index, nest.depth, nest.thread, tracker._used
            )
            if plain is None:
                break
            if plain[0] and not tracker.recorder.recording:  # it has ended meanwhile
                for _, start, end in plain[0]:
                    tracker.recorder.drop_marks(start, end)
                plain[0].clear()
            tracker.take_plain(plain)
        for note in self.notes.take() if self.notes else ():
            try:
                self._tell_one(note)
            except Exception as failure:  # noqa: BLE001  # the border to the job
                report_failure(f"told: {note[0]}", failure)

    def find(self, region: int) -> Followed | None:
        """The region of this number that was opened by a note; it is asked for once."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] == region:
                return self._open.pop(place)[1]
        return None

    def _tell_one(self, note: Note) -> None:
        kind, _, mark, region, what = note
        tracker = self._tracker
        span: Followed | None = None
        if kind == STEP:
            tracker.pass_border(note[1])
        elif kind == ROWS:
            tracker.keep_rows(what)
        elif kind == FETCHED:
            tracker.keep_rows(make_rows(what, tracker.recorder.step_index, tracker._nest.thread))
        elif kind == SKIPPED:
            tracker.name_skipped(self.look_up(region))
        elif kind == END:
            span = self.find(region)
            if what is None:
                tracker.end(span, None, note)
            else:
                tracker.end_data(span, what, None, note)
        else:
            span = self._begin(note)
            self._open.append((region, span))
        if span is None or span.muted:
            tracker.recorder.drop_marks(mark)

    def _begin(self, note: Note) -> Followed | None:
        kind, _, _, _, what = note
        tracker = self._tracker
        if kind == DATA:
            return tracker.open_data(note)
        if kind == FORWARD:
            return tracker.begin_forward(with_gradients=what, at=note)
        if kind == BACKWARD:
            framework, loss = what
            return tracker.begin_backward(framework, loss, note)
        if kind == OPTIMIZER:
            return tracker.begin_optimizer(what, note)
        return tracker.begin_copy(note)
