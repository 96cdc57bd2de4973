"""The wait for a batch of PyTorch's data loader."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.shared import Function, end_with_error, hook_iteration
from profkit.instrument.guard import Patches, report_failure


def hook_loader(patches: Patches, seams: Seams) -> None:
    """Count the wait for a batch as data, with the start of the workers."""
    notes = seams.tracker.notes

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def next_batch(self: Any) -> Any:
            try:
                span = notes.begin_batch()
            except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                report_failure("begin_data", failure)
                span = None
            try:
                batch = original(self)
            except BaseException as error:
                end_with_error(seams, span, error)
                raise
            try:
                notes.end_batch(span, batch)
            except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                report_failure("end_data", failure)
            return batch

        return next_batch

    patches.replace(_BaseDataLoaderIter, "__next__", wrap)
    hook_iteration(patches, seams, DataLoader)
