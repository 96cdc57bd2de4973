"""The inside of PyTorch's loader: the work of its workers, and the wait of their batches."""

# ruff: noqa: SLF001  # PyTorch's loader has no public names for its state

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data._utils import fetch, worker
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
)

from profkit.instrument.batches import PLAIN_TENSORS
from profkit.instrument.frameworks.base import Books
from profkit.instrument.frameworks.shared import Function, call_first, hook_start, open_sizes
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.loading.fetching import LoopMeter, hook_loop_fetch
from profkit.instrument.loading.loaders import Loaders
from profkit.instrument.loading.sizes import BatchSizes
from profkit.instrument.loading.worker_loop import hook_worker_loop

LOOPS = ("_worker_loop", "_process_worker_loop")
"""The names that the function has had which a worker runs."""


def _hook_workers(patches: Patches, books: Books) -> None:
    """Time the reading, decoding, collating and queueing of batches, if this torch can."""
    loaders = Loaders(books.recorder, books.samples)
    fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    meter = LoopMeter(loaders.keep, books.recorder)
    hook_loop_fetch(patches, fetchers, meter, books.recorder.notes)
    # Open a ring before the workers start, and begin an epoch before its first task is sent.
    iterator = _MultiProcessingDataLoaderIter
    hook_start(
        patches,
        loaders,
        iterator,
        "__init__",
        lambda self, loader, *args, **kwargs: loaders.open(
            self, loader.num_workers, loader.num_workers * loader.prefetch_factor
        ),
    )
    begin_epoch = guarded("loader: epoch", loaders.begin_epoch, None)
    patches.replace(iterator, "_reset", call_first(begin_epoch))
    _hook_batches(patches, loaders)
    loop = next(name for name in LOOPS if hasattr(worker, name))
    hook_worker_loop(patches, worker, loop, fetchers, loaders, "index_queue")


hook_workers = guarded("loader: hooks", _hook_workers, None)


def _hook_batches(patches: Patches, loaders: Loaders) -> None:
    """Count the batches that wait when the loop asks for one, and time the one that it gets.

    Without order, this is the one that arrived last.
    """
    iterator = _MultiProcessingDataLoaderIter
    look = guarded(
        "loader: queue", lambda self: loaders.look(self, lambda _: self._task_info), None
    )
    original_next: Function = iterator._next_data
    original_get: Function = iterator._get_data

    @functools.wraps(original_next)
    def next_data(self: Any) -> Any:
        waiting = look(self)
        batch = original_next(self)
        if waiting is not None and waiting.channel is not None:
            try:
                task = waiting.channel.latest
                if getattr(self, "_in_order", True):  # older loaders always are
                    task = self._rcvd_idx - 1
                loaders.take(task, waiting)
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("loader: batch", failure)
        return batch

    @functools.wraps(original_get)
    def get_data(self: Any) -> Any:
        arrived = original_get(self)
        if not getattr(self, "_in_order", True):
            try:
                channel = loaders.channels.get(self)
                if channel is not None and isinstance(arrived[0], int):
                    channel.latest = arrived[0]
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("loader: arrival", failure)
        return arrived

    patches.replace(iterator, "_next_data", lambda _: next_data)
    patches.replace(iterator, "_get_data", lambda _: get_data)


def hook_sizes(patches: Patches, books: Books) -> BatchSizes:
    """Note how many samples the batch sampler of each loader draws for a batch."""
    PLAIN_TENSORS.add(torch.Tensor)
    sizes = open_sizes(books)
    forget = guarded("loader: sizes", sizes.forget, None)
    drawn, iterable = sizes.drawn, _DatasetKind.Iterable
    original: Function = _BaseDataLoaderIter._next_index

    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        keys = original(self)
        if self._auto_collation:
            try:
                known = drawn.get(id(self))
                if known is not None:  # as `draw` does, with a call less
                    known.sizes.append(len(keys))
                else:
                    sizes.draw(self, keys, ends_short=self._dataset_kind == iterable)
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("loader: sizes", failure)
        return keys

    patches.replace(_BaseDataLoaderIter, "_next_index", lambda _: next_index)
    patches.replace(_BaseDataLoaderIter, "_reset", call_first(forget))
    return sizes
