"""Hooks that are equal in all frameworks.

Hooks run inside the job's own calls, so nothing of ours may raise there. A hook that runs several
times per step has its guards written out (`except Exception: report_failure`, marked as an inlined
guard). `guarded` is one call more, and that counts: between two phases our code is no longer in the
processor's cache.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profkit.clock import Clock
from profkit.instrument.batches import ElementReadings
from profkit.instrument.frameworks.base import Books, Seams, note_unmeasured
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.identity import MOST_BATCHES, Facts, describe_shapes
from profkit.instrument.loading.loaders import Loaders
from profkit.instrument.loading.sizes import BatchSizes
from profkit.instrument.rows import Event, Followed
from profkit.instrument.windows.module_calls import ModuleCall

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]

PATIENCE_NS = 2_000_000
"""The writer's thread asks this long for an event on an idle stream; then it tries again later."""


class Nesting(threading.local):
    """True while this thread is inside a call that is followed already."""

    inside = False


def timed(
    seams: Seams, span: Followed | int | None, function: Function, /, *args: Any, **kwargs: Any
) -> Any:
    """Call `function` inside an open region; record the class of its exception and raise it."""
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        seams.end(span, type(error).__name__)
        raise
    try:
        seams.tracker.notes.end(span)
    except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
        report_failure("end", failure)
    return result


def open_sizes(books: Books) -> BatchSizes:
    """Return the sizes of the batches of all loaders; guesses are noted in the run."""
    what = "how many samples a batch has, where its loader does not say it (taken from its shape)"
    return BatchSizes(guarded("loader: sizes", lambda: note_unmeasured(books, what), None))


def hook_iteration(
    patches: Patches, seams: Seams, loader: type, describe: Callable[[Any], Facts]
) -> None:
    """Count the start of a loader's workers as data, and note the loader's options."""
    read_options = guarded("loader: options", describe, {})
    original: Function = getattr(loader, "__iter__")  # noqa: B009  # a type need not have it

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        span = seams.begin_data(starts_epoch=True)
        try:
            iterator = original(self)
        finally:
            seams.end_data(span, 0)
        seams.follow_loader(iterator)
        seams.tracker.seen.loader = read_options(self)
        return iterator

    patches.replace(loader, "__iter__", lambda _: iterate)


def hook_next(patches: Patches, seams: Seams, iterator: Any, sizes: BatchSizes) -> None:
    """Count the wait for a batch as data, with the start of the workers."""
    notes, size_of, shapes = seams.tracker.notes, sizes.take, seams.tracker.seen.shapes
    skip = guarded("loader: sizes", sizes.skip, None)
    note_elements = guarded("loader: elements", ElementReadings(seams.samples).note, None)
    said: list[bool] = []

    def say_elsewhere() -> None:
        if not said and seams.tracker.trains_elsewhere():
            said.append(True)
            note_unmeasured(seams, "waits for batches that another thread of the job fetches")

    note_elsewhere = guarded("loader: thread", say_elsewhere, None)
    original: Function = iterator.__next__

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        try:
            span = notes.begin_batch()
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("begin_data", failure)
            span = None
        try:
            batch = original(self)
        except BaseException as error:
            # A loader's regular end is no error.
            name = None if isinstance(error, StopIteration) else type(error).__name__
            if name:
                skip(self)
            else:
                seams.forget_loader(self)
            seams.end_data(span, 0, name)
            raise
        if span is None:
            note_elsewhere()
        try:
            if len(shapes) < MOST_BATCHES:
                shapes.append(describe_shapes(batch))
            notes.end_batch(span, size_of(self, batch))
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("end_data", failure)
        note_elements(batch)
        return batch

    patches.replace(iterator, "__next__", lambda _: next_batch)


def hook_copy(
    patches: Patches, seams: Seams, tensor: Any, name: str, is_traced: Callable[[], bool]
) -> None:
    """Count a tensor's method between a batch's arrival and its use as the batch's copy."""
    notes = seams.tracker.notes
    original: Function = getattr(tensor, name)

    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return original(self, *args, **kwargs)
        try:
            span = notes.begin_copy()
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("begin_copy", failure)
            span = None
        if span is None:
            return original(self, *args, **kwargs)
        return timed(seams, span, original, self, *args, **kwargs)

    patches.replace(tensor, name, lambda _: copy)


def hook_saving(patches: Patches, seams: Seams, framework: Any) -> None:
    """Count a file that the loop's own thread writes as a checkpoint, not as training."""
    original: Function = framework.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        return timed(seams, seams.begin_checkpoint(), original, *args, **kwargs)

    patches.replace(framework, "save", lambda _: save)


def scale_noter(seams: Seams, host_scale: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a function that notes the loss scale of a gradient scaler."""
    read_scale = guarded("loss scale", host_scale, None)
    return lambda scaler: seams.note_scale(read_scale(scaler))


def hook_scale(patches: Patches, scaler: Any, name: str, note: Callable[[Any], None]) -> None:
    """Call `note` after each call of a gradient scaler's method."""
    original: Function = getattr(scaler, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        note(self)
        return result

    patches.replace(scaler, name, lambda _: call)


def call_back(seams: Seams, span: Followed | int | None, function: Function) -> Function:
    """Return the closure that an optimizer calls, whose work is not the optimizer's own."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        paused = seams.pause(span)
        try:
            return function(*args, **kwargs)
        finally:
            seams.resume(paused)

    return call


def call_first(act: Callable[[Any], object]) -> Wrap:
    """Return a wrapper for methods that calls `act(self)` before the method."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            act(self)
            return original(self, *args, **kwargs)

        return call

    return wrap


def hook_start(
    patches: Patches,
    loaders: Loaders,
    iterator: Any,
    method: str,
    open_ring: Callable[..., None],
    then: Callable[[Any], object] = lambda iterator: None,
) -> None:
    """Hook the method that starts workers: they find their loader's ring."""
    open_guarded = guarded("loader: ring", open_ring, None)
    original: Function = getattr(iterator, method)

    @functools.wraps(original)
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        open_guarded(self, *args, **kwargs)
        try:
            original(self, *args, **kwargs)
        finally:
            loaders.starting.ring = None
        then(self)

    patches.replace(iterator, method, lambda _: start)


class TimingEvent:
    """A CUDA event that takes the time; it is recorded on the calling thread's current stream."""

    __slots__ = ("cuda",)

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def record(self) -> None:
        self.cuda.record()

    def done(self) -> bool:
        return bool(self.cuda.query())

    def ns_since(self, earlier: Any) -> float:
        return float(earlier.cuda.elapsed_time(self.cuda)) * 1e6


def reach_event(
    event: TimingEvent, record: Callable[[], object], clock: Clock
) -> tuple[Event, int, int] | None:
    """Record an event on an idle stream; return it, its host time and its uncertainty.

    Nothing else runs on the stream, so the device reaches the event at once. It is asked for and
    never waited for.
    """
    before = clock()
    record()
    while not event.done():
        if clock() - before > PATIENCE_NS:
            return None
    after = clock()
    return event, (before + after) // 2, after - before


class SharedProfiler:
    """A framework's own profiler: a process has one, and the job's own use goes first."""

    _saver: Callable[[Any], Callable[[Path], None]]
    """Returns a function that writes the capture of a stopped profiler as Chrome JSON."""
    module_calls: Sequence[ModuleCall] = ()
    _profiler: Any = None
    _starting = False
    is_shared = False
    """True once the job has used its profiler."""

    def give_way(self) -> None:
        """Give up a capture if the job starts a profiler of its own."""
        profiler = self._profiler
        self.is_shared = self.is_shared or not self._starting
        if not self._starting and profiler is not None:
            self._profiler = None
            profiler.stop()

    def stop(self) -> Callable[[Path], None] | None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        profiler.stop()
        return self._saver(profiler)
