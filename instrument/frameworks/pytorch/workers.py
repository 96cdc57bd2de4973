"""The inside of PyTorch's loader: the work of its workers, and the wait of their batches."""

# ruff: noqa: SLF001  # PyTorch's loader has no public names for its state

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data._utils import fetch, worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from profkit.instrument.frameworks.base import Books
from profkit.instrument.frameworks.shared import Function, begins_epoch, call_first, starts_workers
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.fetching import LoopMeter, hook_loop_fetch
from profkit.instrument.loading.loaders import Loaders, Waiting
from profkit.instrument.loading.worker_loop import hook_worker_loop

LOOPS = ("_worker_loop", "_process_worker_loop")
"""The names that the function has had which a worker runs."""


def _hook_workers(patches: Patches, books: Books) -> None:
    """Time the reading, decoding, collating and queueing of batches, if this torch can."""
    loaders = Loaders(books.recorder, books.samples)
    fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    meter = LoopMeter(loaders.keep, books.recorder)
    hook_loop_fetch(patches, fetchers, meter, books.recorder.notes)
    _hook_start(patches, loaders)
    _hook_next(patches, loaders)
    _hook_arrivals(patches, loaders)
    loop = next(name for name in LOOPS if hasattr(worker, name))
    hook_worker_loop(patches, worker, loop, fetchers, loaders, "index_queue")


hook_workers = guarded("loader: hooks", _hook_workers, None)


def _hook_start(patches: Patches, loaders: Loaders) -> None:
    """Open a ring before the workers start, and begin an epoch before its first task is sent."""

    def open_ring(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        under_way = loader.num_workers * loader.prefetch_factor
        loaders.open(iterator, loader.num_workers, under_way)

    iterator = _MultiProcessingDataLoaderIter
    patches.replace(iterator, "__init__", starts_workers(loaders, open_ring))
    patches.replace(iterator, "_reset", call_first(begins_epoch(loaders)))


def _hook_next(patches: Patches, loaders: Loaders) -> None:
    """Count the batches that wait when the loop asks for one, and time the one that it gets."""

    def take_unguarded(iterator: Any, waiting: Waiting) -> None:
        if waiting.channel is None:
            return
        task = waiting.channel.latest
        if getattr(iterator, "_in_order", True):  # older loaders always are
            task = iterator._rcvd_idx - 1
        loaders.take(task, waiting)

    look = guarded(
        "loader: queue", lambda self: loaders.look(self, lambda _: self._task_info), None
    )
    take = guarded("loader: batch", take_unguarded, None)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def next_data(self: Any) -> Any:
            waiting = look(self)
            batch = original(self)
            if waiting is not None:
                take(self, waiting)
            return batch

        return next_data

    patches.replace(_MultiProcessingDataLoaderIter, "_next_data", wrap)


def _hook_arrivals(patches: Patches, loaders: Loaders) -> None:
    """Keep the number of the batch that arrived last: without order, the loop gets that one."""

    def note_unguarded(iterator: Any, arrived: tuple[Any, Any]) -> None:
        channel = loaders.channel(iterator)
        if channel is not None and isinstance(arrived[0], int):
            channel.latest = arrived[0]

    note = guarded("loader: arrival", note_unguarded, None)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def get_data(self: Any) -> Any:
            arrived = original(self)
            if not getattr(self, "_in_order", True):
                note(self, arrived)
            return arrived

        return get_data

    patches.replace(_MultiProcessingDataLoaderIter, "_get_data", wrap)
