"""The inside of Paddle's loader: what its workers do, or its thread, and how long their batches wait."""

# ruff: noqa: SLF001  # Paddle's loader keeps its books where only it looks

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paddle.io.dataloader import dataloader_iter, fetcher
from paddle.io.dataloader.dataloader_iter import (
    _DataLoaderIterMultiProcess,
    _DataLoaderIterSingleProcess,
)

from profkit.clock import now_ns
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.fetching import LoopMeter, hook_loop_fetch
from profkit.instrument.loading.loaders import Channel, Loaders, Waiting
from profkit.instrument.loading.worker_loop import hook_worker_loop
from profkit.instrument.rows import BatchTimes

Function = Callable[..., Any]

THREAD = "loader thread"
"""A loader without workers makes its batches in a thread, ahead of the loop."""


def hook_workers(patches: Patches, books: Books) -> None:
    """Time reading, decoding, collating and queueing of every batch; where this Paddle has another loader inside, what can be had of it."""
    guarded("loader: hooks", _hook_workers, None)(patches, books)


def _hook_workers(patches: Patches, books: Books) -> None:
    loaders = Loaders(books.recorder, books.samples)
    fetchers = (fetcher._MapDatasetFetcher, fetcher._IterableDatasetFetcher)
    _hook_thread(patches, loaders, fetchers)
    _hook_start(patches, loaders)
    _hook_arrivals(patches, loaders)
    _hook_next(
        patches,
        _DataLoaderIterMultiProcess,
        lambda self: loaders.look(self, functools.partial(_under_way, self)),
        functools.partial(_take, loaders),
    )
    hook_worker_loop(patches, dataloader_iter, "_worker_loop", fetchers, loaders, "indices_queue")


def _hook_start(patches: Patches, loaders: Loaders) -> None:
    """Each iterator gets its ring before its workers start; each epoch begins before its first task is sent."""
    open_ring = guarded(
        "loader: ring",
        lambda self: loaders.open(self, self._num_workers, self._outstanding_capacity),
        None,
    )
    forget = guarded("loader: end", loaders.forget, None)
    begin_epoch = guarded(
        "loader: epoch",
        lambda self: loaders.begin_epoch(self, [process.pid for process in self._workers]),
        None,
    )

    def wrap_workers(original: Function) -> Function:
        @functools.wraps(original)
        def _init_workers(self: Any) -> None:
            open_ring(self)
            try:
                original(self)
            finally:
                loaders.started()
            begin_epoch(self)

        return _init_workers

    def wrap_reset(original: Function) -> Function:
        @functools.wraps(original)
        def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
            begin_epoch(self)
            return original(self, *args, **kwargs)

        return _reset

    def wrap_shutdown(original: Function) -> Function:
        @functools.wraps(original)
        def _try_shutdown_all(self: Any, *args: Any, **kwargs: Any) -> Any:
            forget(self)
            return original(self, *args, **kwargs)

        return _try_shutdown_all

    patches.replace(_DataLoaderIterMultiProcess, "_init_workers", wrap_workers)
    patches.replace(_DataLoaderIterMultiProcess, "_reset", wrap_reset)
    patches.replace(_DataLoaderIterMultiProcess, "_try_shutdown_all", wrap_shutdown)


def _hook_arrivals(patches: Patches, loaders: Loaders) -> None:
    """The loader's thread passes batches on in the order in which the loop gets them: their numbers are kept in a row of their own."""
    note = guarded("loader: arrival", functools.partial(_note, loaders), None)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def _get_data(self: Any) -> Any:
            arrived = original(self)
            note(self, arrived)
            return arrived

        return _get_data

    patches.replace(_DataLoaderIterMultiProcess, "_get_data", wrap)


def _note(loaders: Loaders, iterator: Any, arrived: Any) -> None:
    channel = loaders.channel(iterator)
    if channel is None or arrived is None:
        return
    if type(arrived).__name__ == "_ResumeIteration":
        channel.arrived.clear()  # the last worker to resume comes after all that is left of the last epoch
    else:
        channel.arrived.append(iterator._rcvd_idx)


def _under_way(iterator: Any, channel: Channel) -> Iterable[int]:
    return range(channel.next_task, iterator._send_idx)


def _hook_next(
    patches: Patches,
    iterator: type,
    look: Callable[[Any], Waiting | None],
    take: Callable[[Any, Waiting | None], None],
) -> None:
    """What waits when the loop asks for a batch, and what became of the batch that it gets."""
    look, take = guarded("loader: queue", look, None), guarded("loader: batch", take, None)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def next_batch(self: Any) -> Any:
            waiting = look(self)
            batch = original(self)
            take(self, waiting)
            return batch

        return next_batch

    patches.replace(iterator, "__next__", wrap)


def _take(loaders: Loaders, iterator: Any, waiting: Waiting | None) -> None:
    """A batch for each place has come."""
    channel = loaders.channel(iterator)
    if channel is None:
        return
    for _ in iterator._places[: len(channel.arrived)]:
        task = channel.arrived.popleft()
        channel.next_task = task + 1
        if waiting is not None:
            loaders.take(task, waiting)


def _hook_thread(patches: Patches, loaders: Loaders, fetchers: Sequence[type]) -> None:
    """Without workers, each fetcher's finished batches stand in a row until the loop takes them."""
    finished: weakref.WeakKeyDictionary[Any, deque[BatchTimes]] = weakref.WeakKeyDictionary()

    def keep(times: BatchTimes, thread: str, fetcher: Any) -> None:
        finished.setdefault(fetcher, deque()).append(times)

    def look(iterator: Any) -> Waiting:
        return Waiting(now_ns(), len(finished.get(iterator._dataset_fetcher, ())))

    def take(iterator: Any, waiting: Waiting | None) -> None:
        made = finished.get(iterator._dataset_fetcher, deque())
        for _ in iterator._places[: len(made)]:
            times = made.popleft()
            if waiting is not None:
                loaders.keep_queued(times, THREAD, waiting)

    _hook_next(patches, _DataLoaderIterSingleProcess, look, take)
    hook_loop_fetch(patches, fetchers, LoopMeter(keep))
