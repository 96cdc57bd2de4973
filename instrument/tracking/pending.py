"""Buffers rows and batches until it is known if the loop trains on them.

Batches and the rows of waits, copies and forwards are buffered until gradients are computed, or
until the next batch is waited for with no training before it. Until a thread has trained, rows of
all threads are buffered, because another thread may turn out to be the one that trains.
"""

from __future__ import annotations

import threading
from collections import deque

from profkit.instrument.models import TrainedModels
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Event, Keep, Row, SpanRow, TimedRow
from profkit.instrument.tracking.states import LoopState, Progress
from profkit.instrument.tracking.threads import ThreadFilter
from profkit.vocab import Phase

EVALUATION = "evaluation"

MOST_EARLY = 10_000
"""Maximum number of rows kept before anything trains; a process that only infers keeps the last."""

MOST_IN_A_ROW = 1_000
"""A loop that has fetched this many batches without calling a model does not train on them."""

MOST_BATCHES_AHEAD = 1
"""A loader is this many batches ahead of its trainer at most; earlier ones were trained on."""

_OTHER = Phase.OTHER.value
_IDLE, _TRAINING = Progress.IDLE, Progress.TRAINING

_PHASE, _DEPTH = SpanRow._fields.index("phase"), SpanRow._fields.index("depth")
"""Positions in a row of `spans`, which may be a plain tuple."""


class Pending:
    """Takes all spans from the recorder, and keeps or buffers them by the loop's state."""

    __slots__ = (
        "_append",
        "_early",
        "_recorder",
        "_state",
        "_threads",
        "batches",
        "keep",
        "rows",
        "trained",
    )

    def __init__(self, recorder: Recorder, state: LoopState, threads: ThreadFilter) -> None:
        self._recorder = recorder
        self._state = state
        self._threads = threads
        self._append = recorder.append_span
        self.keep: Keep
        """Takes the rows that are kept: what the recorder did with all rows before."""
        self._early: deque[TimedRow] = deque(maxlen=MOST_EARLY)
        """Rows of known phases, from before a thread trained."""
        self.rows: list[TimedRow] = []
        """Rows since the last batch was waited for."""
        self.batches: list[int] = []
        """The samples of each batch that may be trained on or not."""
        self.trained: list[int] = []
        """The samples of each batch that the open step trains on."""

    def take(self, row: Row, start: Event | None, end: Event | None) -> None:
        """Keep a row if the loop trains; buffer it if that is not known yet."""
        state = self._state
        if state.progress is _TRAINING and self._threads.decided and state.inside != _OTHER:
            recorder = self._recorder
            if recorder.device is None and recorder.span_copies is None:
                self._append(row)  # as `keep` does, with one call less
            else:
                self.keep(row, start, end)
            return
        is_own = not row[_DEPTH] or threading.get_ident() == self._threads.thread
        if is_own and state.inside == _OTHER:
            if state.progress is not _IDLE:
                self._pass_on(as_other(row), start, end)
        elif is_own and state.progress is not _TRAINING and row[_PHASE] != _OTHER:
            self.rows.append((row, start, end))
        else:
            self._pass_on(row, start, end)

    def take_rows(self, rows: list[Row]) -> None:
        """Take rows from the inside of loaders, which have no events."""
        state = self._state
        is_buffered = state.progress is not _TRAINING and state.inside != _OTHER
        if is_buffered and threading.get_ident() == self._threads.thread:
            self.rows += [(row, None, None) for row in rows]
        else:
            for row in rows:
                self.take(row, None, None)

    def _pass_on(self, row: Row, start: Event | None, end: Event | None) -> None:
        """Keep a row whose phase is known, once it is known which thread trains."""
        if self._threads.decided:
            self.keep(row, start, end)
        else:
            self._early.append((row, start, end))

    def settle(self, *, evaluation: bool) -> None:
        """Count everything buffered as evaluation, or as training."""
        if not evaluation:
            self.trained += self.batches
        self.batches.clear()
        recorder = self._recorder
        if evaluation:
            for row, start, end in self.rows:
                self._pass_on(as_other(row, EVALUATION), start, end)
        elif self._threads.decided and recorder.device is None and recorder.span_copies is None:
            for row, _, _ in self.rows:
                self._append(row)  # as `keep` does, with one call less
        else:
            for row, start, end in self.rows:
                self._pass_on(row, start, end)
        self.rows.clear()

    def release(self) -> None:
        """Keep the early rows: this is the loop that trains, or there will be no other."""
        for row, start, end in self._early:
            self.keep(row, start, end)
        self._early.clear()

    def drop_evaluated(self, trained: list[TrainedModels]) -> None:
        """Do not count the last batch if a model is in `eval()`; no gradients were computed of it.

        Some loops evaluate without switching gradients off.
        """
        for models in trained:
            if any(not getattr(model, "training", True) for model in models.alive):
                del self.trained[-1:]
                return

    def take_samples(self, batches: int | None = None) -> int:
        """Remove and count the samples of the first batches that are trained on, or of all."""
        count = len(self.trained)
        if batches is not None:
            count = max(batches, count - MOST_BATCHES_AHEAD)
        taken = sum(self.trained[:count])
        del self.trained[:count]
        return taken

    def forget(self) -> None:
        """Drop everything, because it came from a thread that does not train."""
        self.rows.clear()
        self.batches.clear()
        self.trained.clear()
        self._early.clear()


def as_other(row: Row, name: str = "") -> SpanRow:
    """Return a row as part of something other than training; rows inside it keep their name."""
    span = SpanRow(*row)
    if name and not span.depth:
        return span._replace(phase=_OTHER, name=name)
    return span._replace(phase=_OTHER)
