"""The inside of PyTorch's loader: what its workers do, and how long their batches wait."""

# ruff: noqa: SLF001  # PyTorch's loader keeps its books where only it looks

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import fetch, worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.loading.fetching import LoopMeter, hook_loop_fetch
from profkit.instrument.loading.loaders import Loaders, Waiting
from profkit.instrument.loading.worker_loop import hook_worker_loop

Function = Callable[..., Any]

LOOPS = ("_worker_loop", "_process_worker_loop")
"""What a worker runs, by the names that it has had."""


def hook_workers(patches: Patches, books: Books) -> None:
    """Time reading, decoding, collating and queueing of every batch; where this torch has another loader inside, what can be had of it."""
    guarded("loader: hooks", _hook_workers, None)(patches, books)


def _hook_workers(patches: Patches, books: Books) -> None:
    loaders = Loaders(books.recorder, books.samples)
    fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    hook_loop_fetch(
        patches, fetchers, LoopMeter(loaders.keep, books.recorder), books.recorder.notes
    )
    _hook_start(patches, loaders)
    _hook_batches(patches, loaders)
    loop = next(name for name in LOOPS if hasattr(worker, name))
    hook_worker_loop(patches, worker, loop, fetchers, loaders, "index_queue")


def _hook_start(patches: Patches, loaders: Loaders) -> None:
    """Each iterator gets its ring before its workers start; each epoch begins before its first task is sent."""
    open_ring = guarded(
        "loader: ring",
        lambda self, loader: loaders.open(
            self, loader.num_workers, loader.num_workers * loader.prefetch_factor
        ),
        None,
    )
    begin_epoch = guarded(
        "loader: epoch",
        lambda self: loaders.begin_epoch(self, [process.pid for process in self._workers]),
        None,
    )

    def wrap_init(original: Function) -> Function:
        @functools.wraps(original)
        def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it is what Python calls
            open_ring(self, loader)
            try:
                original(self, loader, *args, **kwargs)
            finally:
                loaders.started()

        return __init__

    def wrap_reset(original: Function) -> Function:
        @functools.wraps(original)
        def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
            begin_epoch(self)
            return original(self, *args, **kwargs)

        return _reset

    patches.replace(_MultiProcessingDataLoaderIter, "__init__", wrap_init)
    patches.replace(_MultiProcessingDataLoaderIter, "_reset", wrap_reset)


def _hook_batches(patches: Patches, loaders: Loaders) -> None:
    """What waits when the loop asks for a batch, and what became of the batch that it gets."""
    look = guarded(
        "loader: queue", lambda self: loaders.look(self, lambda _: self._task_info), None
    )
    take = guarded("loader: batch", lambda self, waiting: _take(loaders, self, waiting), None)
    note = guarded("loader: arrival", lambda self, arrived: _note(loaders, self, arrived), None)

    def wrap_next(original: Function) -> Function:
        @functools.wraps(original)
        def _next_data(self: Any) -> Any:
            waiting = look(self)
            batch = original(self)
            if waiting is not None:
                take(self, waiting)
            return batch

        return _next_data

    def wrap_get(original: Function) -> Function:
        @functools.wraps(original)
        def _get_data(self: Any) -> Any:
            arrived = original(self)
            if not getattr(self, "_in_order", True):
                note(self, arrived)
            return arrived

        return _get_data

    patches.replace(_MultiProcessingDataLoaderIter, "_next_data", wrap_next)
    patches.replace(_MultiProcessingDataLoaderIter, "_get_data", wrap_get)


def _note(loaders: Loaders, iterator: Any, arrived: tuple[Any, Any]) -> None:
    channel = loaders.channel(iterator)
    if channel is not None and isinstance(arrived[0], int):
        channel.latest = arrived[0]


def _take(loaders: Loaders, iterator: Any, waiting: Waiting) -> None:
    """In order, a batch is the one before the next; else it is the one that arrived last."""
    if waiting.channel is not None:
        in_order = getattr(iterator, "_in_order", True)  # older ones know no other order
        loaders.take(iterator._rcvd_idx - 1 if in_order else waiting.channel.latest, waiting)
