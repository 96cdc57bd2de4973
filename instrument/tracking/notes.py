"""Buffers the reports of hooks, in Python.

This runs if `_notes.c` was not compiled, and specifies that file: a test gives both the same
reports and compares what they buffer. Only `_notes.c` times short batches itself; here the meter
times all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from profkit.clock import Clock
from profkit.instrument.batches import count_batch
from profkit.instrument.rows import Event, Meter, Opened, Row, TimedRow
from profkit.vocab import ZERO_GRAD, Phase

ROOM = 1_000
"""Maximum number of notes, for a loop that fetches one batch and trains on it forever."""

NOBODY = 0
"""No thread has this number."""

Note = tuple[str, int, Event | None, int, Any]
"""A note's kind, time, device event, region number, and the value that belongs to its kind."""

Gradients = tuple[str, float | None]
"""The framework that computed gradients, and the loss if the host knows it."""

Plain = tuple[
    list[TimedRow], list[int], list[int], list[Gradients], bool, bool, int, int
]  # fmt: skip
"""A sequence of phases without nesting.

Its items: the rows, the samples of each batch, the optimizers that stepped, the gradients,
true if anything was training, true if a model was called, the end of the last phase, and the end of
the step, or 0 if it has not ended.
"""

DATA, COPY, FORWARD = Phase.DATA.value, Phase.H2D.value, Phase.FORWARD.value
BACKWARD, OPTIMIZER = Phase.BACKWARD.value, Phase.OPTIMIZER.value
ROWS, FETCHED, SKIPPED, STEP, END = "rows", "fetched", "skipped", "step", "end"

_NO_REGION = frozenset((ROWS, FETCHED, SKIPPED, STEP))
"""Kinds of notes that neither begin nor end a region."""

_this_thread = threading.get_ident


class Notes:
    """Buffers the reports of one thread while it is open for it; forwards all others.

    A buffered report that begins a region returns the region's number. The tracker, to which this
    forwards, is the loop's `Tracker`, which describes the reports.
    """

    def __init__(self, tracker: Any, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._mark: Callable[[], Event | None] | None = None
        self._thread = NOBODY
        self._copies = False
        """True between a batch and the first model call: copies are noted only there."""
        self._quiet = False
        """True in a control step (recording off), which makes no rows."""
        self._stepped = False
        """True if an optimizer has stepped since the last batch."""
        self._stepper = 0
        """The first optimizer that did."""
        self._called_again = False
        """True if a model was called with gradients after that."""
        self._ahead = 0
        self.step = 0
        """The number of the step that is noted. It is set before this is opened."""
        self._serial = 0
        self._inside = 0
        """Number of noted regions that are open, since this was opened."""
        self._notes: list[Note] = []
        self._meter: Meter | None = None

    def __len__(self) -> int:
        return len(self._notes)

    def open(
        self, thread: int, mark: Callable[[], Event | None] | None, ahead: int, quiet: bool
    ) -> None:
        """Buffer the reports of this thread from now on, with a device's events if it has one.

        This step and the next `ahead` ones are replayed together. They make no rows if `quiet`.
        """
        self._thread = thread
        self._mark = mark
        self._copies = self._stepped = self._called_again = False
        self._quiet = quiet
        self._ahead = ahead
        self._inside = 0

    def close(self) -> None:
        """Forward every report from now on."""
        self._thread = NOBODY

    def take(self) -> list[Note]:
        """Remove and return all notes, in their order."""
        notes = self._notes.copy()
        del self._notes[: len(notes)]  # what a finalizer has noted meanwhile stays
        self._ahead = 0
        return notes

    def take_plain(self, step: int, depth: int, thread: str, used: bool) -> Plain | None:
        """Remove and return notes as rows, up to the end of a step.

        Returns `None` and removes nothing if phases are nested or one of them is open.
        """
        until = self._end_of_plain(used=used)
        if until is None:
            return None
        notes, quiet = self._notes[:until], self._quiet
        del self._notes[:until]
        self._ahead = 0
        rows: list[TimedRow] = []
        batches, optimizers = [], []
        gradients: list[Gradients] = []
        trains = False
        name, start, before, ended, border = "", 0, None, 0, 0
        for kind, at, mark, _, what in notes:
            if kind == ROWS:
                rows += [(row, None, None) for row in what]
            elif kind == STEP:
                border = at
            elif kind == END:
                ended = at
                if not quiet:  # a `SpanRow` as a plain tuple, as in `_notes.c`
                    phase = OPTIMIZER if name == ZERO_GRAD else name
                    row = (step, phase, name, depth, thread, start, at, None, None, None, None)
                    rows.append((row, before, mark))
                if what:
                    batches.append(what)
            else:
                name, start, before = kind, at, mark
                used |= kind == FORWARD
                trains |= kind in (BACKWARD, OPTIMIZER) or (kind == FORWARD and bool(what))
                if kind == BACKWARD:
                    gradients.append(what)
                elif kind == OPTIMIZER:
                    optimizers.append(what)
        return rows, batches, optimizers, gradients, trains, used, ended, border

    def _end_of_plain(self, *, used: bool) -> int | None:
        """Return the number of notes to the end of a step, or of all; `None` if not plain."""
        begun = 0
        for place, (kind, _, _, region, _) in enumerate(self._notes, 1):
            if begun:
                if kind == END and region == begun:
                    begun = 0
                elif kind != ROWS:
                    return None
            elif kind == STEP:
                return place
            elif kind in (SKIPPED, END) or (kind == COPY and used):
                return None
            elif kind != ROWS:
                begun = region
                used |= kind == FORWARD
        return None if begun else len(self._notes)

    def begin_batch(self) -> Opened:
        """Begin waiting for the next batch of a loader that has started."""
        is_between = self._stepped and not self._inside
        if _this_thread() != self._thread or not is_between or self._ahead <= 0:
            opened: Opened = self._tracker.begin_data()
            return opened
        self._note(STEP, 0, None)
        self.step += 1
        self._ahead -= 1
        self._stepped = self._copies = self._called_again = False
        return self._begin(DATA, None)

    def begin_wait(self) -> int:
        """Begin waiting for a batch. Called only while this is open."""
        return self._begin(DATA, None)

    def end_batch(self, span: Opened, batch: Any) -> None:
        if isinstance(span, int) and _this_thread() == self._thread:
            self._inside -= 1
            self._note(END, span, count_batch(batch))
            self._copies = True
        else:
            self._tracker.end_batch(span, batch)

    def allow_copies(self) -> None:
        """Note that a batch was reported to the tracker itself."""
        self._copies = True

    def keep_rows(self, rows: list[Row]) -> None:
        if _this_thread() == self._thread:
            self._note(ROWS, 0, rows)
        else:
            self._tracker.keep_rows(rows)

    def open_regions(self) -> int:
        """Return how many noted regions of this thread are open, less earlier ones that ended."""
        if _this_thread() != self._thread:
            return 0
        count = 0
        for kind, *_ in self._notes:
            if kind == END:
                count -= 1
            elif kind not in _NO_REGION:
                count += 1
        return count

    def measure_with(self, meter: Meter | None) -> None:
        """Time batches that are made in the loop with `meter`."""
        self._meter = meter

    def begin_fetch(self, fetcher: Any) -> Any:
        return self._meter.begin(fetcher) if self._meter is not None else None

    def end_fetch(self, making: Any) -> None:
        if self._meter is not None:
            self._meter.end(making)

    def drop_fetch(self, making: Any) -> None:
        if self._meter is not None:
            self._meter.drop(making)

    def begin_copy(self) -> Opened:
        """Begin copying a batch to the device; copies after a model call are ignored."""
        if _this_thread() != self._thread:
            opened: Opened = self._tracker.begin_copy()
            return opened
        return self._begin(COPY, None) if self._copies else None

    def begin_forward(self, *, with_gradients: bool | None) -> Opened:
        """Begin a call of a model; after an optimizer's step, an evaluation is not noted."""
        is_noted = not self._stepped or with_gradients is not None
        if _this_thread() != self._thread or not is_noted:
            opened: Opened = self._tracker.begin_forward(with_gradients=with_gradients)
            return opened
        self._called_again |= self._stepped and bool(with_gradients)
        self._copies = False
        return self._begin(FORWARD, with_gradients)

    def begin_backward(self, framework: str, loss: float | None) -> Opened:
        if _this_thread() != self._thread:
            opened: Opened = self._tracker.begin_backward(framework, loss)
            return opened
        return self._begin(BACKWARD, (framework, loss))

    def begin_optimizer(self, optimizer: int) -> Opened:
        """Begin an optimizer's step; one that trains on a batch again is not noted."""
        is_again = self._called_again and optimizer == self._stepper
        if _this_thread() != self._thread or is_again:
            opened: Opened = self._tracker.begin_optimizer(optimizer)
            return opened
        if not self._stepped:
            self._stepper = optimizer
        self._stepped = True
        return self._begin(OPTIMIZER, optimizer)

    def begin_reset(self) -> Opened:
        """Begin resetting gradients."""
        if _this_thread() != self._thread:
            opened: Opened = self._tracker.begin_reset()
            return opened
        return self._begin(ZERO_GRAD, None)

    def end(self, span: Opened, error: str | None = None) -> None:
        """End a region. Regions that an exception left are reported to the tracker at once."""
        if isinstance(span, int) and error is None and _this_thread() == self._thread:
            self._inside -= 1
            self._note(END, span, None)
        elif span is not None:
            self._tracker.end(span, error)

    def name_skipped(self, span: Opened) -> None:
        if isinstance(span, int) and _this_thread() == self._thread:
            self._note(SKIPPED, span, None)
        else:
            self._tracker.name_skipped(span)

    def _begin(self, kind: str, what: Any) -> int:
        self._serial = region = self._serial + 1
        self._inside += 1
        self._note(kind, region, what)
        return region

    def _note(self, kind: str, region: int, what: Any) -> None:
        mark = None
        if self._mark is not None and not self._quiet and kind not in (ROWS, SKIPPED, STEP):
            mark = self._mark()
        at = self._clock()
        if len(self._notes) >= ROOM:
            self._tracker.catch_up()
            if len(self._notes) >= ROOM:
                raise OverflowError("too many boundaries are noted")
        self._notes.append((kind, at, mark, region, what))
