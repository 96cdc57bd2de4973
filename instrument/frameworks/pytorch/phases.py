"""The forward and the backward of a step in PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch.compiler import leave_alone, set_eval_frame, skip_code
from profkit.instrument.frameworks.pytorch.ddp import Exchanges
from profkit.instrument.frameworks.pytorch.identity import autocast_dtype
from profkit.instrument.frameworks.shared import Function, Nesting
from profkit.instrument.guard import Patches, report_failure
from profkit.instrument.models import TrainedModels
from profkit.instrument.rows import Followed

_INTERNALS: Any = torch._C  # noqa: SLF001  # no public name covers all devices
_AUTOCASTS: Callable[[], bool] = getattr(
    _INTERNALS, "_is_any_autocast_enabled", torch.is_autocast_enabled
)


class Calls(Nesting):
    """Calls that this thread is inside of."""

    in_backward = False
    """True in a hooked function that computes gradients with `torch.autograd`."""


class ModelCalls:
    """The loop's calls of models, also for hooks that see more than the call of a module."""

    def __init__(self, seams: Seams) -> None:
        self.nesting = Calls()
        self.models = TrainedModels("torch", torch.nn.Module.modules, _trainable, _version)
        self._seams = seams
        seams.tracker.models.append(self.models)

    def begin(
        self, model: Any, *, is_same_batch: bool = False, has_backward: bool = True
    ) -> Followed | int | None:
        """Begin a forward that calls this model; `hook_modules` has the same, inlined.

        With `is_same_batch`, a forward with another part of the batch has been counted already.
        """
        seams, gradients = self._seams, has_backward and torch.is_grad_enabled()
        if (enabled := _AUTOCASTS()) is not seams.autocast:
            seams.note_autocast(enabled, autocast_dtype)
        noted = self.models.note_call(model, gradients)
        if noted and is_same_batch:
            noted = False
        return seams.tracker.notes.begin_forward(with_gradients=noted)


def hook_modules(patches: Patches, seams: Seams) -> ModelCalls:
    """Count the outermost call of a module as a forward.

    Modules inside it cost one flag, which is asked first, and compiled code costs nothing. If torch
    only hands a call on to `_call_impl`, an inner module is called there: no call is added.
    """
    notes, grad_enabled = seams.tracker.notes, torch.is_grad_enabled
    calls = ModelCalls(seams)
    nesting, models = calls.nesting, calls.models
    trained, note_call = models.ids, models.note_call
    autocasts = _AUTOCASTS
    original: Function = torch.nn.Module.__call__
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
                seams.note_autocast(enabled, autocast_dtype)
            try:
                gradients: bool | None = grad_enabled()
                if not gradients or id(self) not in trained:
                    gradients = note_call(self, gradients)
                span = notes.begin_forward(with_gradients=gradients)
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("begin_forward", failure)
                span = None
            try:  # `timed`, without its call
                result = original(self, *args, **kwargs)
            except BaseException as error:
                seams.end(span, type(error).__name__)
                raise
            try:
                notes.end(span)
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("end", failure)
            return result
        finally:
            nesting.inside = False

    skip_code(getattr(call, "__code__"))  # noqa: B009  # else torch would compile it
    patches.replace(torch.nn.Module, "__call__", lambda _: call)
    return calls


def _trainable(model: Any) -> Iterator[Any]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def _version(tensor: Any) -> int:
    return int(tensor._version)  # noqa: SLF001  # it has no public name


def hook_backward(patches: Patches, seams: Seams, exchanges: Exchanges, nesting: Calls) -> None:
    """Time `torch.autograd.backward`, which `Tensor.backward` calls, too."""
    notes, recorder, tensor = seams.tracker.notes, seams.recorder, torch.Tensor

    original: Function = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if nesting.in_backward:
            return original(tensors, *args, **kwargs)
        compiles = set_eval_frame(None)  # a compiled function may call this
        try:
            loss = None
            # A device's tensor is never read, because that would wait. The loss has just been
            # computed: a moment later it would be out of the cache. Every other question to a
            # tensor costs as much as its value, so a tensor of many items says so itself.
            if recorder.recording and isinstance(tensors, tensor) and tensors.is_cpu:
                try:  # noqa: SIM105  # `suppress` would be a call more
                    loss = tensors.item()
                except RuntimeError:
                    pass
            span = notes.begin_backward("torch", loss)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("begin_backward", failure)
            span = None
        finally:
            set_eval_frame(compiles)
        try:
            result = original(tensors, *args, **kwargs)
        except BaseException as error:
            seams.end(span, type(error).__name__)
            raise
        if span is not None:
            set_eval_frame(None)
            try:
                exchanges.end_of_backward()
                notes.end(span)
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("end", failure)
            finally:
                set_eval_frame(compiles)
        return result

    leave_alone(backward)
    patches.replace(torch.autograd, "backward", lambda _: backward)
