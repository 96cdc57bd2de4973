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
from typing import TYPE_CHECKING, TypeVar

from profkit.attached import disabled
from profkit.instrument.guard import guarded, report_failure
from profkit.instrument.tracking.marks import mark_batches, mark_region

if TYPE_CHECKING:
    from profkit.run.job import Job

T = TypeVar("T")


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


def loader(batches: Iterable[T]) -> Iterator[T]:
    """Return the batches as they come, and time the wait for each as data."""
    job = _job()
    return iter(batches) if job is None else mark_batches(job.tracker, batches)


@contextlib.contextmanager
def step(sample_count: int | None = None) -> Iterator[None]:
    """Record a step from the end of the last one; an exception inside leaves no step."""
    job = _job()
    if job is not None:
        guarded("step", job.tracker.begin_explicit_step, None)()
    yield
    if job is not None:
        guarded("step", job.tracker.end_explicit_step, None)(sample_count)


def phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Record a phase if it has the name of one, or else a part of the phase around it.

    What happens inside `evaluation` or `checkpoint` is no training.
    """
    job = _job()
    return mark_region(job.tracker if job is not None else None, name)
