"""The inside of Paddle's loader: the work of its workers or thread, the wait of batches."""

# ruff: noqa: SLF001  # Paddle's loader has no public names for its state

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle.io.dataloader import dataloader_iter, fetcher
from paddle.io.dataloader.batch_sampler import _InfiniteIterableSampler
from paddle.io.dataloader.dataloader_iter import (
    _DataLoaderIterBase,
    _DataLoaderIterMultiProcess,
    _DataLoaderIterSingleProcess,
)

from profkit.clock import now_ns
from profkit.instrument.batches import PLAIN_TENSORS
from profkit.instrument.frameworks.base import Books
from profkit.instrument.frameworks.shared import Function, call_first, hook_start, open_sizes
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.loading.fetching import LoopMeter, hook_loop_fetch
from profkit.instrument.loading.loaders import Loaders, Waiting
from profkit.instrument.loading.sizes import BatchSizes, CountedSampler
from profkit.instrument.loading.worker_loop import hook_worker_loop
from profkit.instrument.rows import BatchTimes
from profkit.vocab import LOADER_THREAD


def _hook_workers(patches: Patches, books: Books) -> None:
    """Time the reading, decoding, collating and queueing of batches, if this Paddle can."""
    loaders = Loaders(books.recorder, books.samples)
    fetchers = (fetcher._MapDatasetFetcher, fetcher._IterableDatasetFetcher)
    _hook_thread(patches, loaders, fetchers)
    # Open a ring before the workers start, and begin an epoch before its first task is sent.
    begin_epoch = guarded("loader: epoch", loaders.begin_epoch, None)
    forget = guarded("loader: end", lambda iterator: loaders.channels.pop(iterator, None), None)
    iterator = _DataLoaderIterMultiProcess
    hook_start(
        patches,
        loaders,
        iterator,
        "_init_workers",
        lambda self: loaders.open(self, self._num_workers, self._outstanding_capacity),
        then=begin_epoch,
    )
    patches.replace(iterator, "_reset", call_first(begin_epoch))
    # The ring of a loader that has ended is released, even if its iterator is kept alive.
    patches.replace(iterator, "_try_shutdown_all", call_first(forget))
    _hook_arrivals(patches, loaders)
    _hook_next(
        patches,
        _DataLoaderIterMultiProcess,
        lambda self: loaders.look(self, lambda channel: range(channel.next_task, self._send_idx)),
        functools.partial(_take, loaders),
    )
    hook_worker_loop(patches, dataloader_iter, "_worker_loop", fetchers, loaders, "indices_queue")


hook_workers = guarded("loader: hooks", _hook_workers, None)


def _hook_arrivals(patches: Patches, loaders: Loaders) -> None:
    """Keep the numbers of arriving batches: the loop gets them in the order of their arrival."""
    original: Function = _DataLoaderIterMultiProcess._get_data

    @functools.wraps(original)
    def get_data(self: Any) -> Any:
        arrived = original(self)
        try:
            channel = loaders.channels.get(self)
            if channel is None or arrived is None:
                return arrived
            if type(arrived).__name__ == "_ResumeIteration":
                # The last worker resumes after the last epoch's remaining batches have arrived.
                channel.arrived.clear()
            else:
                channel.arrived.append(self._rcvd_idx)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("loader: arrival", failure)
        return arrived

    patches.replace(_DataLoaderIterMultiProcess, "_get_data", lambda _: get_data)


def _hook_next(
    patches: Patches,
    iterator: Any,
    look: Callable[[Any], Waiting | None],
    take: Callable[[Any, Waiting | None], None],
) -> None:
    """Count the batches that wait when the loop asks for one, and time the one that it gets."""
    look = guarded("loader: queue", look, None)
    take = guarded("loader: batch", take, None)

    original: Function = iterator.__next__

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        waiting = look(self)
        batch = original(self)
        take(self, waiting)
        return batch

    patches.replace(iterator, "__next__", lambda _: next_batch)


def _take(loaders: Loaders, iterator: Any, waiting: Waiting | None) -> None:
    """Report the batches that the loop got: one for each place."""
    channel = loaders.channels.get(iterator)
    if channel is None:
        return
    for _ in iterator._places[: len(channel.arrived)]:
        task = channel.arrived.popleft()
        channel.next_task = task + 1
        if waiting is not None:
            loaders.take(task, waiting)


def _hook_thread(patches: Patches, loaders: Loaders, fetchers: Sequence[type]) -> None:
    """Time the batches of a loader without workers: its thread makes them ahead of the loop."""
    finished: weakref.WeakKeyDictionary[Any, deque[BatchTimes]] = weakref.WeakKeyDictionary()

    def keep(times: BatchTimes, thread: str, fetcher: Any) -> None:
        finished.setdefault(fetcher, deque()).append(times)

    meter = LoopMeter(keep)

    def look(iterator: Any) -> Waiting:
        return Waiting(now_ns(), len(finished.get(iterator._dataset_fetcher, ())))

    def take(iterator: Any, waiting: Waiting | None) -> None:
        made = finished.get(iterator._dataset_fetcher, deque())
        for _ in iterator._places[: len(made)]:
            times = made.popleft()
            if waiting is not None:
                loaders.keep_queued(times, LOADER_THREAD, waiting)

    _hook_next(patches, _DataLoaderIterSingleProcess, look, take)
    hook_loop_fetch(patches, fetchers, meter)


def hook_sizes(patches: Patches, books: Books) -> BatchSizes:
    """Note how many samples the batch sampler of each loader draws for a batch."""
    PLAIN_TENSORS.add(paddle.Tensor)
    sizes = open_sizes(books)

    def count_drawn(iterator: Any, sampler: Any) -> Any:
        if not iterator._auto_collate_batch:
            return sampler
        ends_short = isinstance(sampler, _InfiniteIterableSampler)
        return CountedSampler(sampler, sizes.open(iterator, ends_short=ends_short))

    count_guarded = guarded("loader: sizes", count_drawn, None)

    def wrap(original: property) -> property:
        def index_sampler(self: Any) -> Any:
            sampler = original.__get__(self)
            return count_guarded(self, sampler) or sampler

        return property(index_sampler)

    patches.replace(_DataLoaderIterBase, "_index_sampler", wrap)
    return sizes
