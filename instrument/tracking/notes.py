"""Notes of the borders that hooks report, in Python.

This is what runs where `_notes.c` was not compiled, and it says what that file must do: a test tells both the same
and compares what they have noted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from profkit.clock import Clock
from profkit.instrument.batches import count_batch
from profkit.instrument.device import Event
from profkit.vocab import Phase

if TYPE_CHECKING:
    from profkit.instrument.loading.fetching import Meter
    from profkit.instrument.recorder import Row
    from profkit.instrument.tracking.tracker import Followed, Tracker

ROOM = 1_000
"""Borders that wait at most: a loop that fetches one batch and trains on it for ever has no next one."""

NOBODY = 0
"""No thread has this number."""

Note = tuple[str, int, "Event | None", int, Any]
"""What was seen, when, the device's event at that moment, the number of the region that begins or ends, and what belongs to it."""

Kept = tuple["Row", "Event | None", "Event | None"]
"""The row of a span, and the device's events at its borders."""

Plain = tuple[
    list[Kept], list[int], list[int], "tuple[str, float | None] | None", bool, bool, int, int
]
"""Phases that lay side by side: their rows, the samples of batches that came, the optimizers that stepped, the framework and loss of gradients,
whether any of it was training, whether a model was called, when the last was over, and when the step ended if it did."""

DATA, COPY, FORWARD = Phase.DATA.value, Phase.H2D.value, Phase.FORWARD.value
BACKWARD, OPTIMIZER = Phase.BACKWARD.value, Phase.OPTIMIZER.value
ROWS, FETCHED, SKIPPED, STEP, END = "rows", "fetched", "skipped", "step", "end"

_this_thread = threading.get_ident


class Notes:
    """What hooks call. In the thread for which it is open they are noted, and get a number for each region; else the tracker is told at once."""

    def __init__(self, tracker: Tracker, clock: Clock) -> None:
        self._tracker = tracker
        self._clock = clock
        self._mark: Callable[[], Event | None] | None = None
        self._thread = NOBODY
        self._copies = self._quiet = self._stepped = False
        self._ahead = 0
        self._serial = 0
        self._notes: list[Note] = []
        self._meter: Meter | None = None

    def __len__(self) -> int:
        return len(self._notes)

    def open(self, thread: int, mark: Callable[[], Event | None] | None, ahead: int | None) -> None:
        """From here on what this thread reports is noted, with a device's events where there is one.

        Of a step that is switched off no rows are made; `ahead`, which is not `None` then, tells how many after it are too. These need not be told one
        by one, so that it is seen what being switched on costs.
        """
        self._thread = thread
        self._mark = mark
        self._copies = self._stepped = False
        self._quiet = ahead is not None
        self._ahead = ahead or 0

    def close(self) -> None:
        """From here on the tracker is told at once."""
        self._thread = NOBODY

    def take(self) -> list[Note]:
        """What was noted, in its order; nothing is left."""
        notes = self._notes.copy()
        self._notes.clear()
        self._ahead = 0
        return notes

    def take_plain(self, step: int, depth: int, thread: str, used: bool) -> Plain | None:
        """The same as rows, until a step ends, where phases lie side by side and each is over; else `None`, and nothing is taken."""
        until = self._end_of_plain(used=used)
        if until is None:
            return None
        notes, self._notes[:] = self._notes[:until], self._notes[until:]
        self._ahead = 0
        rows: list[Kept] = []
        phase, start, before, ended, border = "", 0, None, 0, 0
        for kind, at, mark, _, what in notes:
            if kind == ROWS:
                rows += [(row, None, None) for row in what]
            elif kind == STEP:
                border = at
            elif kind == END:
                ended = at
                if not self._quiet:
                    rows.append(
                        (
                            (step, phase, phase, depth, thread, start, at, None, None, None, None),
                            before,
                            mark,
                        )
                    )
            else:
                phase, start, before = kind, at, mark
        batches = [what for kind, _, _, _, what in notes if kind == END and what]
        optimizers = [what for kind, _, _, _, what in notes if kind == OPTIMIZER]
        gradients = next(
            (what for kind, _, _, _, what in reversed(notes) if kind == BACKWARD), None
        )
        trains = any(
            kind in (BACKWARD, OPTIMIZER) or (kind == FORWARD and what)
            for kind, _, _, _, what in notes
        )
        return (
            rows,
            batches,
            optimizers,
            gradients,
            trains,
            used or any(note[0] == FORWARD for note in notes),
            ended,
            border,
        )

    def _end_of_plain(self, *, used: bool) -> int | None:
        """How many notes there are up to the end of a step, or at all, if phases lie side by side, and rows of loaders nowhere but inside of them."""
        begun = 0
        for place, (kind, _, _, region, _) in enumerate(self._notes, 1):
            if begun:
                if kind == END and region == begun:
                    begun = 0
                elif kind != ROWS:
                    return None
            elif kind == STEP:
                return place
            elif kind in (ROWS, SKIPPED, END) or (kind == COPY and used):
                return None
            else:
                begun = region
                used |= kind == FORWARD
        return None if begun else len(self._notes)

    def begin_batch(self) -> Followed | int | None:
        """The loop waits for a batch, as hooks report it."""
        if _this_thread() != self._thread or not self._stepped or self._ahead <= 0:
            return self._tracker.begin_data()
        self._note(STEP, 0, None)
        self._ahead -= 1
        self._stepped = self._copies = False
        return self._begin(DATA, None)

    def begin_wait(self) -> int:
        """The loop waits for a batch. Only where this is open."""
        return self._begin(DATA, None)

    def end_batch(self, span: Followed | int | None, batch: Any) -> None:
        """The batch is there."""
        if isinstance(span, int) and _this_thread() == self._thread:
            self._note(END, span, count_batch(batch))
            self._copies = True
        else:
            self._tracker.end_batch(span, batch)

    def allow_copies(self) -> None:
        """A batch is there, of which the tracker has been told."""
        self._copies = True

    def keep_rows(self, rows: list[Row]) -> None:
        """Rows from the inside of loaders."""
        if _this_thread() == self._thread:
            self._note(ROWS, 0, rows)
        else:
            self._tracker.keep_rows(rows)

    def open_regions(self) -> int:
        """Return how many noted regions of this thread are open, less earlier ones that have ended."""
        if _this_thread() != self._thread:
            return 0
        kinds = [note[0] for note in self._notes]
        ended = kinds.count(END)
        return len(kinds) - ended - sum(map(kinds.count, (ROWS, FETCHED, SKIPPED, STEP))) - ended

    def measure_with(self, meter: Meter | None) -> None:
        """Who times batches that are made in the loop itself; the twin in C does it itself where a batch is short."""
        self._meter = meter

    def begin_fetch(self, fetcher: Any) -> Any:
        """The loop makes a batch itself."""
        return self._meter.begin(fetcher) if self._meter is not None else None

    def end_fetch(self, making: Any) -> None:
        """It is made."""
        if self._meter is not None:
            self._meter.end(making)

    def drop_fetch(self, making: Any) -> None:
        """An exception came instead."""
        if self._meter is not None:
            self._meter.drop(making)

    def begin_copy(self) -> Followed | int | None:
        """A batch is copied to the device; once a model has been called, what is copied is none."""
        if _this_thread() != self._thread:
            return self._tracker.begin_copy()
        return self._begin(COPY, None) if self._copies else None

    def begin_forward(self, *, with_gradients: bool) -> Followed | int | None:
        """A model is called."""
        if _this_thread() != self._thread:
            return self._tracker.begin_forward(with_gradients=with_gradients)
        self._copies = False
        return self._begin(FORWARD, with_gradients)

    def begin_backward(self, framework: str, loss: float | None) -> Followed | int | None:
        """Gradients are computed, of a loss with this value where the host has it."""
        if _this_thread() != self._thread:
            return self._tracker.begin_backward(framework, loss)
        return self._begin(BACKWARD, (framework, loss))

    def begin_optimizer(self, optimizer: int) -> Followed | int | None:
        """An optimizer steps, or a gradient scaler decides whether it does."""
        if _this_thread() != self._thread:
            return self._tracker.begin_optimizer(optimizer)
        self._stepped = True
        return self._begin(OPTIMIZER, optimizer)

    def end(self, span: Followed | int | None, error: str | None = None) -> None:
        """What a `begin_...` opened is over."""
        if isinstance(span, int) and error is None and _this_thread() == self._thread:
            self._note(END, span, None)
        elif span is not None:
            self._tracker.end(span, error)

    def name_skipped(self, span: Followed | int | None) -> None:
        """The scaler found infinities, and the optimizer did not step."""
        if isinstance(span, int) and _this_thread() == self._thread:
            self._note(SKIPPED, span, None)
        else:
            self._tracker.name_skipped(span)

    def _begin(self, kind: str, what: Any) -> int:
        self._serial += 1
        self._note(kind, self._serial, what)
        return self._serial

    def _note(self, kind: str, region: int, what: Any) -> None:
        if len(self._notes) >= ROOM:
            self._tracker.catch_up()
        mark = (
            self._mark()
            if self._mark is not None and not self._quiet and kind not in (ROWS, SKIPPED, STEP)
            else None
        )
        self._notes.append((kind, self._clock(), mark, region, what))
