"""The phases of a step in PyTorch: the wait for a batch, its copy, forward, and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.ddp import Exchanges
from profkit.instrument.frameworks.shared import (
    Function,
    Nesting,
    end_with_error,
    hook_iteration,
    timed,
)
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


def hook_copies(patches: Patches, seams: Seams) -> None:
    """Count `Tensor.to` and `Tensor.cuda` between a batch's arrival and its use as its copy."""
    notes = seams.tracker.notes

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            try:
                span = notes.begin_copy()
            except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                report_failure("begin_copy", failure)
                span = None
            if span is None:
                return original(self, *args, **kwargs)
            return timed(seams, span, original, self, *args, **kwargs)

        return copy

    for name in ("to", "cuda"):
        patches.replace(torch.Tensor, name, wrap)


def hook_modules(patches: Patches, seams: Seams) -> None:
    """Count the outermost call of a module as a forward.

    Modules inside it cost one flag, which is asked first, and compiled code costs nothing. If torch
    only hands a call on to `_call_impl`, an inner module is called there: no call is added.
    """
    notes, grad_enabled = seams.tracker.notes, torch.is_grad_enabled
    nesting = Nesting()
    internals = torch._C  # noqa: SLF001  # no public name covers all devices
    autocasts: Callable[[], bool] = getattr(
        internals, "_is_any_autocast_enabled", torch.is_autocast_enabled
    )

    def wrap(original: Function) -> Function:
        hands_on = original is getattr(torch.nn.Module, "_wrapped_call_impl", None)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if nesting.inside:
                if hands_on and self._compiled_call_impl is None:
                    return self._call_impl(*args, **kwargs)
                return original(self, *args, **kwargs)
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            nesting.inside = True
            try:
                if (enabled := autocasts()) is not seams.autocast:
                    seams.note_autocast(enabled)
                try:
                    span = notes.begin_forward(with_gradients=grad_enabled())
                except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                    report_failure("begin_forward", failure)
                    span = None
                try:  # `timed`, without its call
                    result = original(self, *args, **kwargs)
                except BaseException as error:
                    seams.end(span, type(error).__name__)
                    raise
                try:
                    notes.end(span)
                except Exception as failure:  # noqa: BLE001  # as `guarded`, without its call
                    report_failure("end", failure)
                return result
            finally:
                nesting.inside = False

        return call

    patches.replace(torch.nn.Module, "__call__", wrap)


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
