"""Marks that a loop sets itself, on top of the hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from profkit.instrument.batches import count_samples
from profkit.instrument.guard import guarded
from profkit.instrument.rows import Followed
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.states import CHECKPOINT
from profkit.instrument.tracking.tracker import Tracker
from profkit.vocab import PHASES, Phase

T = TypeVar("T")

_END: Any = object()


class _Alive:
    """Exists as long as a loop may take batches from a loader."""


def mark_batches(tracker: Tracker, batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches as they come, and time the wait for each as data."""
    begin = guarded("loader", tracker.begin_data, None)
    end = guarded("loader", tracker.end_data, None)
    count = guarded("count_samples", count_samples, 0)
    count_waiting = guarded("loader", lambda: tracker.waiting_samples, 0)
    alive = _Alive()
    tracker.follow_loader(alive)
    span = begin(starts_epoch=True)
    iterator = iter(batches)
    while True:
        waiting_before = count_waiting()
        try:
            batch = next(iterator, _END)
        except BaseException as error:
            end(span, 0, type(error).__name__)
            raise
        if batch is _END:
            end(span, 0)
            return
        # The hooks of a loader that the framework knows have counted the batch already.
        is_counted = count_waiting() != waiting_before
        end(span, 0 if is_counted else count(batch))
        yield batch
        span = begin()


@contextlib.contextmanager
def mark_region(tracker: Tracker | None, name: str) -> Iterator[None]:
    """Record the block: a phase, an evaluation, a checkpoint, or a part of a phase."""
    region = guarded("phase", _open_region, None)(tracker, name) if tracker is not None else None
    if region is None:
        yield
        return
    with region:
        yield


def _open_region(tracker: Tracker, name: str) -> Any:
    if name == EVALUATION:
        return _until_end(tracker, tracker.begin_evaluation())
    if name == CHECKPOINT:
        return _until_end(tracker, tracker.begin_checkpoint())
    around = tracker.inside or Phase.OTHER.value
    return tracker.recorder.phase(name if name in PHASES else around, name)


@contextlib.contextmanager
def _until_end(tracker: Tracker, span: Followed | None) -> Iterator[None]:
    """End the region after the block, in which the hooks' reports belong to it."""
    end = guarded("phase", tracker.end, None)
    try:
        yield
    except BaseException as error:
        end(span, type(error).__name__)
        raise
    end(span)
