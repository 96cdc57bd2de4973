"""The loop API: two lines in a training loop of one's own.

    for batch in profkit.loader(loader):
        with profkit.step():
            ...

Phases inside the step come from the framework's hooks, as with `profkit run`; `profkit.phase` adds
regions of one's own. If `PROFKIT_DISABLE` is set, all of this does nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from profkit.attached import disabled
from profkit.instrument.batches import count_samples
from profkit.instrument.guard import guarded, report_failure
from profkit.vocab import PHASES, Phase

if TYPE_CHECKING:
    from profkit.run.job import Job

T = TypeVar("T")

_END: Any = object()


@functools.cache
def _job() -> Job | None:
    """Return this process's job, hooked; `None` for good if profkit is off or cannot record."""
    if disabled():
        return None
    try:
        from profkit.run.attach import arming
        from profkit.run.job import current_job

        arming.arm()
        return current_job()
    except Exception as error:  # noqa: BLE001  # the job trains, recorded or not
        report_failure("profkit.loader", error)
        return None


class _Alive:
    """Exists as long as a loop may take batches from `loader`."""


def loader(batches: Iterable[T]) -> Iterator[T]:
    """Return the batches as they come, and time the wait for each as data."""
    job = _job()
    return iter(batches) if job is None else _timed(job, batches)


def _timed(job: Job, batches: Iterable[T]) -> Iterator[T]:
    begin = guarded("loader", job.tracker.begin_data, None)
    end = guarded("loader", job.tracker.end_data, None)
    count = guarded("count_samples", count_samples, 0)
    count_waiting = guarded("loader", lambda: job.tracker.waiting_samples, 0)
    alive = _Alive()
    job.tracker.follow_loader(alive)
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
def step(sample_count: int | None = None) -> Iterator[None]:
    """Record a step from the end of the last one; an exception inside leaves no step."""
    job = _job()
    if job is not None:
        guarded("step", job.tracker.begin_explicit_step, None)()
    yield
    if job is not None:
        guarded("step", job.tracker.end_explicit_step, None)(sample_count)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Record a phase if it has the name of one, or else a part of the phase around it."""
    job = _job()
    region = guarded("phase", _open_region, None)(job, name) if job is not None else None
    if region is None:
        yield
        return
    with region:
        yield


def _open_region(job: Job, name: str) -> Any:
    around = job.tracker.inside or Phase.OTHER.value
    return job.recorder.phase(name if name in PHASES else around, name)
