"""Replays notes to the tracker, as if they had been reported at once.

In a loop that trains, boundaries of phases are noted (`notes.py`) and replayed when the next batch
is waited for, those of a few short steps together: code that has left the processor's caches takes
longer, and does so once for all of them. A caller that asks the tracker or reports to it before
then has it catch up first, so that nobody sees the difference. Steps that wait because the loop
hangs are replayed by the writer's thread, so that they are not lost if it is killed.

Two threads may therefore replay, one at a time. The writer leaves the notes of the open step, so
that there are notes as long as it replays: the loop finds them, and waits for its turn. A finalizer
or a signal handler may report meanwhile. The replay that it interrupts goes on with its notes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

from profkit.instrument.guard import report_failure
from profkit.instrument.loading.loaders import make_rows
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Followed, Opened, Row, SpanRow
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
from profkit.instrument.tracking.regions import Regions
from profkit.instrument.tracking.states import LoopState, StepMode
from profkit.vocab import ZERO_GRAD

MOST_STEPS_AHEAD = 15
"""Maximum number of short steps that are replayed together with the one before them.

Only steps without nested phases wait, because the writer can replay no others.
"""

LONGEST_TOGETHER_NS = 200_000_000
"""Steps that are replayed together take no longer, so that a killed job loses far less than 1 s."""

LATE_NS = 300_000_000
"""Steps that have waited longer are replayed by the writer; usually, the loop does it before."""

LONGEST_WAIT_S = 1.0
"""A thread that waits this long for its turn leaves the notes: nothing may stop the job."""

LONG_STEP_NS = 250_000_000
"""Longer steps are reported at once, so that a killed job loses no more than the last second."""


CompiledNotes: type[Notes] = Notes
"""The notes in C, or those in Python if profkit was installed without a compiler."""

with contextlib.suppress(ImportError):
    from profkit.instrument.tracking import _notes

    CompiledNotes = _notes.Notes


class Boundaries:
    """The notes of one tracker, a `Tracker`, and the regions that were opened by a note."""

    __slots__ = (
        "__weakref__",
        "_is_plain",
        "_is_replaying",
        "_open",
        "_recorder",
        "_regions",
        "_state",
        "_tracker",
        "_turn",
        "notes",
    )

    def __init__(
        self, tracker: Any, recorder: Recorder, regions: Regions, state: LoopState
    ) -> None:
        self._tracker = tracker
        self._recorder = recorder
        self._regions = regions
        self._state = state
        self.notes = CompiledNotes(tracker, recorder.clock)
        self._open: list[tuple[int, Followed | None]] = []
        """The number of each region opened by a note, and the region if it was accepted."""
        self._is_plain = False
        """True if the last replay met no nested phases."""
        self.free()
        _LIVE.add(self)

    def free(self) -> None:
        """Let any thread replay: in a forked child, the one that did is gone."""
        self._turn = threading.RLock()
        self._is_replaying = False

    def open(self, thread: int) -> bool:
        """Note the reports of this thread from now on; it waits for its next batch.

        Returns false if reports must not be noted: in long steps, and with ranges.
        """
        recorder = self._recorder
        if recorder.has_ranges or recorder.last_step_ns >= LONG_STEP_NS or recorder.stopped:
            return False
        ahead = 0
        if self._state.mode is StepMode.INFERRED and (most := self._most_ahead()):
            ahead = recorder.count_alike(most)
        self.notes.step = recorder.step_index
        self.notes.open(thread, recorder.marker, ahead, not recorder.recording)
        if self._open:
            opened = self._regions.opened
            self._open = [pair for pair in self._open if pair[1] in opened]
        return True

    def _most_ahead(self) -> int:
        """Return how many of the next steps may be replayed together with this one.

        Control steps are, whatever they take: they have no phases that a killed job could lose.
        """
        recorder = self._recorder
        if not recorder.recording:
            return MOST_STEPS_AHEAD
        if not self._is_plain:
            return 0
        together = LONGEST_TOGETHER_NS // max(1, recorder.last_step_ns)
        return min(MOST_STEPS_AHEAD, max(0, together - 1))

    def forget(self) -> None:
        """Drop all notes, because they came from a thread that does not train."""
        self.notes.close()
        self.notes.take()
        self.notes.step = 0
        self._open.clear()

    def find(self, region: Opened, *, ends: bool) -> Followed | None:
        """Return the region of this number that was opened by a note; forget it if it ends."""
        if not isinstance(region, int):
            return region
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place][0] == region:
                span = self._open[place][1]
                if ends:
                    del self._open[place]
                return span
        return None

    def replay(self, *, one_by_one: bool = False) -> None:
        """Replay all notes. Those that fail are lost; all stay if another thread is at it."""
        turn = self._turn
        if not turn.acquire(timeout=LONGEST_WAIT_S):
            report_failure("borders", TimeoutError("another thread replays for too long"))
            return
        try:
            if not self._is_replaying:
                self._replay_all(one_by_one=one_by_one)
        finally:
            turn.release()

    def _replay_all(self, *, one_by_one: bool) -> None:
        self._is_replaying = True
        try:
            while self.notes and not one_by_one and self._replay_step():
                pass
            notes = self.notes.take() if self.notes else []
            self._is_plain = not notes
            for note in notes:
                try:
                    self._replay(note)
                except Exception as failure:  # noqa: BLE001  # only this note is lost
                    report_failure(f"told: {note[0]}", failure)
        except Exception as failure:  # noqa: BLE001  # lost notes must not stop the job
            report_failure("borders", failure)
            self.notes.take()
            self.notes.step = self._recorder.step_index
        finally:
            self._is_replaying = False

    def replay_late(self) -> None:
        """Replay whole steps that have waited long, on the thread that calls this."""
        if not self._is_late():
            return
        with self._turn:
            if self._is_replaying:
                return
            self._is_replaying = True
            try:
                while self._is_late() and self._replay_step():
                    pass
            except Exception as failure:  # noqa: BLE001  # lost notes must not stop the writer
                report_failure("borders", failure)
            finally:
                self._is_replaying = False

    def _is_late(self) -> bool:
        """Return true if a step is noted to its end, and has waited long.

        Its end is not known here; it is later than that of the last step that was replayed.
        """
        recorder = self._recorder
        return (
            self.notes.step > recorder.step_index
            and recorder.at_border is None
            and not recorder.stopped
            and recorder.clock() - recorder.boundary_ns > LATE_NS
        )

    def _replay_step(self) -> bool:
        """Replay notes at once, to the end of a step; false if phases are nested."""
        recorder, regions = self._recorder, self._regions
        if regions.opened or self._state.inside or self._open:
            return False
        nest, used = regions.nest, self._state.model_called
        plain = self.notes.take_plain(recorder.step_index, nest.depth, nest.thread, used)
        if plain is None:
            return False
        rows = plain[0]
        if rows and not recorder.recording:  # the recorder was stopped in the meantime
            for _, start, end in rows:
                recorder.drop_marks(start, end)
            rows.clear()
        self._tracker.take_plain(plain)
        return True

    def _replay(self, note: Note) -> None:
        kind, at, mark, region, what = note
        tracker, regions = self._tracker, self._regions
        span: Followed | None = None
        if kind == STEP:
            tracker.pass_boundary(at)
        elif kind == ROWS:
            tracker.keep_rows(list(map(self._nest, what)))
        elif kind == FETCHED:
            rows = make_rows(what, self._recorder.step_index, regions.nest.thread)
            tracker.keep_rows(rows)
        elif kind == SKIPPED:
            tracker.name_skipped(self.find(region, ends=False))
        else:
            regions.note = note
            try:
                if kind == END:
                    span = self.find(region, ends=True)
                    if what is None:
                        tracker.end(span)
                    else:
                        tracker.end_data(span, what)
                else:
                    span = self._begin(kind, what)
                    self._open.append((region, span))
            finally:
                regions.note = None
        if span is None or span.muted:
            self._recorder.drop_marks(mark)

    def _nest(self, row: Row) -> Row:
        """Return a row with the depth at which it is, if it is one of the loop's own.

        When it was noted, nobody knew which of the noted regions would be accepted.
        """
        nest, span = self._regions.nest, SpanRow(*row)
        if span.thread != nest.thread or span.phase == DATA or span.depth == nest.depth:
            return row
        return tuple(span._replace(depth=nest.depth))

    def _begin(self, kind: str, what: Any) -> Followed | None:
        tracker = self._tracker
        span: Opened
        if kind == DATA:
            span = self._regions.open(DATA, DATA)
        elif kind == FORWARD:
            span = tracker.begin_forward(with_gradients=what)
        elif kind == BACKWARD:
            framework, loss = what
            span = tracker.begin_backward(framework, loss)
        elif kind == OPTIMIZER:
            span = tracker.begin_optimizer(what)
        elif kind == ZERO_GRAD:
            span = tracker.begin_reset()
        else:
            span = tracker.begin_copy()
        return span if isinstance(span, Followed) else None


_LIVE: weakref.WeakSet[Boundaries] = weakref.WeakSet()
"""The boundaries of all trackers of the process."""

os.register_at_fork(after_in_child=lambda: list(map(Boundaries.free, list(_LIVE))))
