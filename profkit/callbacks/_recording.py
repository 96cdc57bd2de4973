"""What all callbacks do: tell the tracker of a trainer's steps, and of what it does beside training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from profkit.errors import ProfkitError
from profkit.instrument.batches import count_samples
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.rows import Followed
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.tracker import Tracker
from profkit.run.loop import _job

CHECKPOINT = "checkpoint"
LOGGING = "logging"

__all__ = ["CHECKPOINT", "EVALUATION", "LOGGING", "Recording", "begins_training", "hook"]


class Recording:
    """One training as its callback tells it; nothing is told of what happens before it begins and after it ends."""

    def __init__(self) -> None:
        self._tracker: Tracker | None = None
        self._patches = Patches()
        self._aside: Followed | None = None
        self._forget_batches()

    def _forget_batches(self) -> None:
        self._batches = 0
        self._losses: list[float] = []
        self._samples: int | None = None

    def __reduce__(self) -> tuple[type[Recording], tuple[()]]:
        """A copy of a callback records nothing yet."""
        return Recording, ()

    @property
    def is_open(self) -> bool:
        return self._tracker is not None

    @property
    def tracker(self) -> Tracker:
        if self._tracker is None:
            raise ProfkitError("no training is recorded")
        return self._tracker

    def begin(self) -> None:
        """A training begins: hook its framework. Where profkit is off, all that follows does nothing."""
        self.end()
        job = _job()
        if job is not None:
            self._tracker = job.tracker
            self._forget_batches()
            job.tracker.start_over()

    def end(self) -> None:
        """The training is over or broken off: what follows is no step of it."""
        self._patches.undo()
        if self._tracker is not None:
            self.end_aside()
            self._tracker.start_over()
            self._tracker = None

    def begin_step(self) -> None:
        """A batch is there; it begins a step, or belongs to the one that is open."""
        self.end_aside()
        self.tracker.begin_explicit_step()

    def end_batch(self, loss: float | None = None, samples: int | None = None) -> None:
        """It has been trained on; its loss is the one told, else what the seams have seen on the host."""
        loss = self.tracker.loss if loss is None else loss
        self.tracker.loss = None
        self._batches += 1
        if loss is not None:
            self._losses.append(loss)
        if samples is not None:
            self._count(samples)

    def end_step(self, epoch: int, join: Callable[[Iterable[float]], float]) -> None:
        """The batches since the last step are one step; its samples are those told, else what the loader has brought, and its loss is their losses joined."""
        self.tracker.note_epoch(epoch)
        self.tracker.loss = (
            join(self._losses) if self._losses and len(self._losses) == self._batches else None
        )
        self.tracker.end_explicit_step(self._samples, batches=self._batches)
        self._forget_batches()

    def begin_aside(self, name: str) -> None:
        """What happens now is no training."""
        self.end_aside()
        self._aside = self.tracker.begin_aside(name)

    def end_aside(self) -> None:
        aside, self._aside = self._aside, None
        self.tracker.end(aside)

    def name_calls(self, owner: Any, method: str, name: str) -> None:
        """Until the training ends, calls of `owner.method` are no training either."""
        tracker = self.tracker
        self._time_calls(owner, method, lambda: tracker.begin_aside(name))

    def time_forward(self, owner: Any, method: str) -> None:
        """Until the training ends, calls of `owner.method` are the model and its loss."""
        tracker = self.tracker
        self._time_calls(owner, method, lambda: tracker.begin_forward(with_gradients=True))

    def count_handed_out(self, loader: Any) -> None:
        """Until the training ends, a rank's batches are those that this loader hands to it, whichever rank has fetched them."""
        count = guarded("count_samples", lambda batch: self._count(count_samples(batch)), None)
        begin, end = (
            guarded("loader", self.tracker.begin_data, None),
            guarded("loader", self.tracker.end_data, None),
        )
        dataset = loader.dataset

        def wrap(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
            def iterate(other: Any) -> Iterator[Any]:
                is_ours = (
                    getattr(other, "dataset", None) is dataset
                )  # a loader that resumes an epoch is another object
                return _counted(original(other), count, begin, end) if is_ours else original(other)

            return iterate

        self._patches.replace(type(loader), "__iter__", wrap)

    def _count(self, samples: int) -> None:
        self._samples = (self._samples or 0) + samples

    def _time_calls(
        self, owner: Any, method: str, begin: Callable[[], Followed | int | None]
    ) -> None:
        begin, end = guarded(method, begin, None), guarded(method, self.tracker.end, None)
        self._patches.replace(owner, method, lambda original: _timed(original, begin, end))


def _timed(
    original: Callable[..., Any],
    begin: Callable[[], Followed | int | None],
    end: Callable[..., None],
) -> Callable[..., Any]:
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

    return timed


def _counted(
    batches: Iterator[Any],
    count: Callable[[Any], None],
    begin: Callable[[], Followed | int | None],
    end: Callable[..., None],
) -> Iterator[Any]:
    """The batches as they come, the wait for each timed as data; those that come within an evaluation are not counted."""
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
    """The hook with which a training begins; nothing that goes wrong in it reaches the trainer."""
    return cast("Hook", guarded(f"{method.__module__}.{method.__name__}", method, None))


def hook(method: Hook) -> Hook:
    """A hook that is called within the training; outside of one it does nothing."""
    guarded_method = begins_training(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.recording.is_open:
            guarded_method(self, *args, **kwargs)

    return cast("Hook", call)
