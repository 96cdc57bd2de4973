"""A loader's worker process: it times its batches, and does nothing else of ours."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.fetching import Fetch, WaitClock, hook_fetch
from profkit.instrument.loading.loaders import Loaders
from profkit.instrument.loading.ring import Ring, find_ring
from profkit.instrument.rows import Meter


class WorkerMeter:
    """Writes the times of one worker's batches into the ring of its loader.

    The number of a batch is known when the worker takes its task. A fetch without a new number is
    not the worker's own, but for example that of a loader inside the dataset.
    """

    def __init__(self, worker: int, ring: Ring | None) -> None:
        self.worker = worker
        self._ring = ring
        self._searched = ring is not None
        self._clock = WaitClock()
        self._task: int | None = None
        self._epoch = 1
        self.tasks = 0
        """Number of tasks that the worker has taken, for a thread that looks from outside."""
        self.idle = True
        """True while the worker waits for a task."""

    def numbered(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `get` of the queue of tasks, so that each task's number is noted."""

        @functools.wraps(get)
        def get_and_note(*args: Any, **kwargs: Any) -> Any:
            self.idle = True
            task = get(*args, **kwargs)
            self.tasks += 1
            self.idle = False
            if type(task).__name__ == "_ResumeIteration":
                self._epoch += 1
            elif isinstance(task, tuple) and task:
                self._task = task[0]
            return task

        return get_and_note

    def begin(self, fetcher: Any) -> Fetch | None:
        task, self._task = self._task, None
        if task is None:
            return None
        if not self._searched:
            self._searched = True
            self._ring = find_ring(self.worker)
        return None if self._ring is None else Fetch(fetcher, self._clock, task)

    def end(self, fetch: Fetch) -> None:
        times = fetch.close(self.worker)
        if self._ring is not None:
            self._ring.write(self._epoch, fetch.task, times)


@dataclass(frozen=True, eq=False)
class WorkerLoop:
    """The framework's own loop of a worker, after the process is set up for timing.

    It is pickled as the name of the place where it is, for workers that are no forks. So a worker
    runs what is in that place: this, or the framework's own loop if no hooks were installed.
    """

    original: Callable[..., Any]
    place: str
    set_up: Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], None]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.set_up(self.original, args, kwargs)
        return self.original(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return pkgutil.resolve_name, (self.place,)


def hook_worker_loop(
    patches: Patches, module: Any, name: str, fetchers: Sequence[type], loaders: Loaders, queue: str
) -> None:
    """Have workers time their batches; the argument named `queue` brings their tasks.

    A worker does not train, so all other hooks are removed there, and nothing is recorded.
    """
    remove_hooks = guarded("loader: hooks in a worker", patches.undo, None)

    def set_up(
        original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        arguments = inspect.signature(original).bind(*args, **kwargs).arguments
        if threading.current_thread() is not threading.main_thread():
            return  # the worker is a thread of the process that trains
        loaders.recorder.stop()
        remove_hooks()
        worker, ring = arguments["worker_id"], loaders.starting.ring
        meter = WorkerMeter(worker, ring)
        loaders.recorder.in_worker(meter)
        arguments[queue].get = meter.numbered(arguments[queue].get)
        for fetcher in fetchers:
            hook_fetch(Patches(), fetcher, Meter(meter.begin, meter.end, Fetch.drop))

    place = f"{module.__name__}:{name}"
    set_up_guarded = guarded("loader: worker", set_up, None)
    patches.replace(module, name, lambda original: WorkerLoop(original, place, set_up_guarded))
