"""What happens in a loader's worker: it notes when its batches were made, and does nothing else of ours."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.fetching import Fetch, WaitClock, hook_fetch
from profkit.instrument.loading.loaders import Loaders
from profkit.instrument.loading.ring import Ring, find_ring


class WorkerMeter:
    """Writes the times of one worker's batches into the ring of its loader.

    The number of a batch is seen where the worker takes its task. A fetch without a new one is
    not the worker's own: a loader inside the dataset, for example.
    """

    def __init__(self, worker: int, ring: Ring | None) -> None:
        self._worker = worker
        self._ring = ring
        self._sought = ring is not None
        self._clock = WaitClock()
        self._task: int | None = None
        self._epoch = 1

    def numbered(self, get: Callable[..., Any]) -> Callable[..., Any]:
        """`get` of the queue of tasks, with each task seen."""
        note = guarded("loader: task", self._note, None)

        @functools.wraps(get)
        def get_and_note(*args: Any, **kwargs: Any) -> Any:
            task = get(*args, **kwargs)
            note(task)
            return task

        return get_and_note

    def _note(self, task: Any) -> None:
        if isinstance(task, tuple):
            self._task = task[0]
        elif type(task).__name__ == "_ResumeIteration":
            self._epoch += 1

    def begin(self, fetcher: Any) -> Fetch | None:
        task, self._task = self._task, None
        if task is None:
            return None
        if not self._sought:
            self._sought = True
            self._ring = find_ring(self._worker)
        return None if self._ring is None else Fetch(fetcher, self._clock, task)

    def end(self, fetch: Fetch) -> None:
        times = fetch.close(self._worker)
        if self._ring is not None:
            self._ring.write(self._epoch, fetch.task, times)

    def drop(self, fetch: Fetch) -> None:
        fetch.drop()


class WorkerLoop:
    """What a loader starts in each worker: the framework's own loop, once the process is set up for it.

    To a worker that is no fork it travels by the place where it stands, so that whatever stands
    there in the worker is run: this, or the framework's own where no hooks were installed.
    """

    def __init__(
        self, original: Callable[..., Any], place: str, set_up: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._original = original
        self._place = place
        self._set_up = guarded(
            "loader: worker",
            lambda *args, **kwargs: set_up(_arguments(original, *args, **kwargs)),
            None,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._set_up(*args, **kwargs)
        return self._original(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return pkgutil.resolve_name, (self._place,)


def _arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Mapping[str, Any]:
    return inspect.signature(function).bind(*args, **kwargs).arguments


def hook_worker_loop(
    patches: Patches, module: Any, name: str, fetchers: Sequence[type], loaders: Loaders, queue: str
) -> None:
    """Have workers time their batches; `queue` names the argument of the loop `module.name` that brings the tasks.

    A worker does not train: all other hooks are taken back there, and nothing is recorded.
    """
    take_back = guarded("loader: hooks in a worker", patches.undo, None)

    def set_up(arguments: Mapping[str, Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a worker that is a thread: this process trains
        loaders.recorder.stop()
        take_back()
        meter = WorkerMeter(arguments["worker_id"], loaders.starting.ring)
        arguments[queue].get = meter.numbered(arguments[queue].get)
        hook_fetch(Patches(), fetchers, meter)

    patches.replace(
        module, name, lambda original: WorkerLoop(original, f"{module.__name__}:{name}", set_up)
    )
