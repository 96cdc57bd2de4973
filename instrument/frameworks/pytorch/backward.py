"""PyTorch's backward, and the loss that it begins with."""

from __future__ import annotations

import functools
from typing import Any

import torch

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.ddp import Exchanges
from profkit.instrument.frameworks.shared import Function
from profkit.instrument.guard import Patches, report_failure


def hook_backward(patches: Patches, seams: Seams, exchanges: Exchanges) -> None:
    """Time `torch.autograd.backward`, which `Tensor.backward` calls, too."""
    notes, recorder, tensor = seams.tracker.notes, seams.recorder, torch.Tensor

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                loss = None
                if recorder.recording and isinstance(tensors, tensor) and tensors.is_cpu:
                    loss = _read_loss(tensors)
                span = notes.begin_backward("torch", loss)
            except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                report_failure("begin_backward", failure)
                span = None
            try:
                result = original(tensors, *args, **kwargs)
            except BaseException as error:
                seams.end(span, type(error).__name__)
                raise
            if span is not None:
                try:
                    if exchanges.used:
                        exchanges.end_of_backward()
                    notes.end(span)
                except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                    report_failure("end", failure)
            return result

        return backward

    patches.replace(torch.autograd, "backward", wrap)


def _read_loss(loss: torch.Tensor) -> float | None:
    """Return the value of a tensor on the host; `None` if it has several items.

    A device's tensor is never read, because that would wait. The loss has just been computed: a
    moment later it would be out of the cache. Every other question to a tensor costs as much as its
    value, so nothing is asked before: a tensor of many items says so itself.
    """
    try:
        return loss.item()
    except RuntimeError:
        return None
