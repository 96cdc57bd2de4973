"""The wait for a batch of Paddle's data loader."""

from __future__ import annotations

import functools
from typing import Any

import paddle
from paddle.io.dataloader.dataloader_iter import (
    _DataLoaderIterMultiProcess,
    _DataLoaderIterSingleProcess,
)

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.shared import Function, end_with_error, hook_iteration
from profkit.instrument.guard import Patches


def hook_loader(patches: Patches, seams: Seams) -> None:
    """Count the wait for a batch as data, with the start of the workers.

    Calling a loader iterates it, too.
    """

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def next_batch(self: Any) -> Any:
            span = seams.begin_batch()
            try:
                batch = original(self)
            except BaseException as error:
                end_with_error(seams, span, error)
                raise
            seams.end_batch(span, batch)
            return batch

        return next_batch

    for iterator in (_DataLoaderIterSingleProcess, _DataLoaderIterMultiProcess):
        patches.replace(iterator, "__next__", wrap)
    hook_iteration(patches, seams, paddle.io.DataLoader)
