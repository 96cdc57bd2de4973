"""The common part of all callbacks: report a trainer's steps and pauses to the tracker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from profkit.instrument.batches import count_samples
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.rows import Followed
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.tracker import Tracker
from profkit.run.loop import _job

CHECKPOINT = "checkpoint"
LOGGING = "logging"

__all__ = ["CHECKPOINT", "EVALUATION", "LOGGING", "Recording", "begins_training", "hook", "report"]


class Recording:
    """One training, as its callback reports it, from its begin to its end."""

    tracker: Tracker
    """The tracker of the job, while the recording is open."""

    def __init__(self) -> None:
        self.is_open = False
        self._patches = Patches()
        self._aside: Followed | None = None
        self._forget_batches()

    def _forget_batches(self) -> None:
        """Start to count the batches of the next step."""
        self._batches = 0
        self._losses: list[float] = []
        self._samples: int | None = None

    def __reduce__(self) -> tuple[type[Recording], tuple[()]]:
        """Copy the callback without its state: a copy records nothing yet."""
        return Recording, ()

    def begin(self) -> None:
        """Begin a training and hook its framework; if profkit is off, nothing is recorded."""
        self.end()
        job = _job()
        if job is not None:
            self.tracker, self.is_open = job.tracker, True
            self._forget_batches()
            job.tracker.start_over()

    def end(self) -> None:
        """End the training, finished or not; what follows is no step of it."""
        self._patches.undo()
        if self.is_open:
            self.end_aside()
            self.tracker.start_over()
            self.is_open = False

    def begin_step(self) -> None:
        """Begin a step with a batch, or add the batch to the open step."""
        self.end_aside()
        self.tracker.begin_explicit_step()

    def end_batch(self, loss: float | None = None, samples: int | None = None) -> None:
        """End a batch; without a loss, it is the one that the hooks have seen on the host."""
        loss = self.tracker.loss if loss is None else loss
        self.tracker.loss = None
        self._batches += 1
        if loss is not None:
            self._losses.append(loss)
        if samples is not None:
            self._samples = (self._samples or 0) + samples

    def end_step(self, epoch: int, join: Callable[[Iterable[float]], float]) -> None:
        """End the step of all batches since the last one; `join` makes one loss of theirs.

        If no samples were reported, the loader's are counted.
        """
        self.tracker.note_epoch(epoch)
        self.tracker.loss = None
        if self._losses and len(self._losses) == self._batches:
            self.tracker.loss = join(self._losses)
        self.tracker.end_explicit_step(self._samples, batches=self._batches)
        self._forget_batches()

    def begin_aside(self, name: str) -> None:
        """Record what follows as something other than training."""
        self.end_aside()
        self._aside = self.tracker.begin_aside(name)

    def end_aside(self) -> None:
        aside, self._aside = self._aside, None
        self.tracker.end(aside)

    def name_calls(self, owner: Any, method: str, name: str = "") -> None:
        """Record calls of `owner.method` under a name, as no training, until the training ends.

        Without a name, they are calls of the model and the loss.
        """
        open_region = functools.partial(self.tracker.begin_forward, with_gradients=True)
        if name:
            open_region = functools.partial(self.tracker.begin_aside, name)
        begin = guarded(method, open_region, None)
        end = guarded(method, self.tracker.end, None)
        original = getattr(owner, method)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            span = begin()
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                end(span, type(error).__name__)
                raise
            end(span)
            return result

        self._patches.replace(owner, method, lambda _: timed)

    def count_handed_out(self, loader: Any) -> None:
        """Count the batches that this loader hands to the rank, whichever rank fetched them."""
        count = guarded("count_samples", self._count, None)
        begin = guarded("loader", self.tracker.begin_data, None)
        end = guarded("loader", self.tracker.end_data, None)
        dataset, original = loader.dataset, type(loader).__iter__

        def iterate(other: Any) -> Iterator[Any]:
            # A loader that resumes an epoch is another object with the same data set.
            if getattr(other, "dataset", None) is not dataset:
                iterator: Iterator[Any] = original(other)
                return iterator
            return _counted(original(other), count, begin, end)

        self._patches.replace(type(loader), "__iter__", lambda _: iterate)

    def _count(self, batch: Any) -> None:
        self._samples = (self._samples or 0) + count_samples(batch)


def _counted(
    batches: Iterator[Any],
    count: Callable[[Any], None],
    begin: Callable[[], Followed | int | None],
    end: Callable[..., None],
) -> Iterator[Any]:
    """Yield the batches, time the wait for each, and count those outside of evaluations."""
    while True:
        span = begin()
        try:
            batch = next(batches, _END)
        except BaseException as error:
            end(span, 0, type(error).__name__)
            raise
        end(span, 0)
        if batch is _END:
            return
        if span is not None:
            count(batch)
        yield batch


_END: Any = object()

Hook = TypeVar("Hook", bound=Callable[..., None])


def begins_training(method: Hook) -> Hook:
    """Guard the hook with which a training begins: its exceptions do not reach the trainer."""
    return cast("Hook", guarded(f"{method.__module__}.{method.__name__}", method, None))


def hook(method: Hook) -> Hook:
    """Guard a hook of a training; outside of a training it does nothing."""
    guarded_method = begins_training(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.recording.is_open:
            guarded_method(self, *args, **kwargs)

    return cast("Hook", call)


@dataclass(frozen=True)
class _Report:
    """A hook that only calls a method of `Recording`, whatever the trainer passes."""

    method: str
    given: tuple[Any, ...] = ()

    def __set_name__(self, owner: type, name: str) -> None:
        """Put the hook in place of this, under the name that failures are reported by."""

        def call(callback: Any, *args: Any, **kwargs: Any) -> None:
            getattr(callback.recording, self.method)(*self.given)

        call.__module__, call.__name__ = owner.__module__, name
        setattr(owner, name, hook(call))


report: Callable[..., Any] = _Report
