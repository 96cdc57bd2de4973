"""PyTorch's seams: loader iteration, module calls, backward, optimizers, the gradient scaler, DDP."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from profkit.instrument.device import Device
from profkit.instrument.frameworks.base import Books, Place, Seams
from profkit.instrument.frameworks.pytorch.collectives import hook_collectives
from profkit.instrument.frameworks.pytorch.ddp import Exchanges, hook_ddp
from profkit.instrument.frameworks.pytorch.device import CudaDevice
from profkit.instrument.frameworks.pytorch.workers import hook_workers
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.rows import Followed
from profkit.instrument.tracking.states import UNKNOWN
from profkit.instrument.windows.windows import KernelProfiler


class PyTorch:
    """Hooks torch 2.4 and later."""

    name = "torch"
    module = "torch"

    def install(self, seams: Seams) -> Patches:
        patches = Patches()
        hook_workers(patches, seams)
        _hook_loader(patches, seams)
        _hook_copies(patches, seams)
        _hook_modules(patches, seams)
        exchanges = _hook_exchange(patches, seams)
        _hook_backward(patches, seams, exchanges)
        _hook_optimizers(patches, seams)
        _hook_scaler(patches, seams)
        _hook_saving(patches, seams)
        return patches

    def install_inner(self, books: Books) -> tuple[Patches, Callable[[], None]]:
        patches = Patches()
        hook_workers(patches, books)
        return patches, _hook_exchange(patches, books).end_of_backward

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        from profkit.instrument.frameworks.pytorch.windows import PyTorchKernels

        profiler = PyTorchKernels(operators=operators)
        profiler.hook(patches)
        return profiler

    def watch_profiler(self, patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        from profkit.instrument.frameworks.pytorch.windows import is_profiling, watch_profiler

        watch_profiler(patches, begins)
        return is_profiling

    def device(self) -> Device | None:
        return CudaDevice() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def device_name(self) -> str:
        return (
            f"cuda:{torch.cuda.current_device()}"
            if torch.cuda.is_available() and torch.cuda.is_initialized()
            else "cpu"
        )

    def place(self) -> Place | None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        return Place(
            distributed.get_rank(),
            distributed.get_world_size(),
            int(os.environ.get("LOCAL_RANK", "0")),
        )


FRAMEWORK = PyTorch()


def _hook_exchange(patches: Patches, books: Books) -> Exchanges:
    """DDP's buckets and the job's own collectives, counted together."""
    sequences: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    hook_collectives(patches, books, sequences)
    return hook_ddp(patches, books, sequences)


def _hook_loader(patches: Patches, seams: Seams) -> None:
    """Waiting for a batch is data; so is starting the workers."""
    notes = seams.tracker.notes

    def wrap_next(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def next_batch(self: Any) -> Any:
            try:
                span = notes.begin_batch()
            except Exception as failure:  # noqa: BLE001  # the border to the job
                report_failure("begin_data", failure)
                span = None
            try:
                batch = original(self)
            except BaseException as error:
                seams.end_data(
                    span, 0, None if isinstance(error, StopIteration) else type(error).__name__
                )
                raise
            try:
                notes.end_batch(span, batch)
            except Exception as failure:  # noqa: BLE001  # the border to the job
                report_failure("end_data", failure)
            return batch

        return next_batch

    def wrap_iter(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterate(self: Any) -> Any:
            span = seams.begin_data(starts_epoch=True)
            try:
                return original(self)
            finally:
                seams.end_data(span, 0)

        return iterate

    patches.replace(_BaseDataLoaderIter, "__next__", wrap_next)
    patches.replace(DataLoader, "__iter__", wrap_iter)


def _hook_copies(patches: Patches, seams: Seams) -> None:
    """`Tensor.to` and `Tensor.cuda` between the batch's arrival and its use are its copy to the device."""
    notes = seams.tracker.notes

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            try:
                span = notes.begin_copy()
            except Exception as failure:  # noqa: BLE001  # the border to the job
                report_failure("begin_copy", failure)
                span = None
            return (
                original(self, *args, **kwargs)
                if span is None
                else _timed(seams, span, original, self, *args, **kwargs)
            )

        return copy

    for name in ("to", "cuda"):
        patches.replace(torch.Tensor, name, wrap)


def _timed(
    seams: Seams,
    span: Followed | int | None,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call `function` inside an open region; its exception goes on, and its class is recorded."""
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        seams.end(span, type(error).__name__)
        raise
    try:
        seams.tracker.notes.end(span)
    except Exception as failure:  # noqa: BLE001  # the border to the job
        report_failure("end", failure)
    return result


class _Nesting(threading.local):
    """Whether this thread is inside a module's call already."""

    inside = False


def _hook_modules(patches: Patches, seams: Seams) -> None:
    """The outermost call of a module is a forward. Modules inside it cost one flag, asked first, and compiled code nothing.

    What torch itself does where a module is called, it hands on: inside, that is done here, so that there is no call more than without us.
    """
    notes, grad_enabled = seams.tracker.notes, torch.is_grad_enabled
    nesting = _Nesting()
    internals = torch._C  # noqa: SLF001  # no public name covers all devices
    autocasts: Callable[[], bool] = getattr(
        internals, "_is_any_autocast_enabled", torch.is_autocast_enabled
    )

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        hands_on = original is getattr(torch.nn.Module, "_wrapped_call_impl", None)

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if nesting.inside:
                return (
                    self._call_impl(*args, **kwargs)
                    if hands_on and self._compiled_call_impl is None
                    else original(self, *args, **kwargs)
                )
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            nesting.inside = True
            try:
                if (enabled := autocasts()) is not seams.autocast:
                    seams.note_autocast(enabled)
                try:
                    span = notes.begin_forward(with_gradients=grad_enabled())
                except Exception as failure:  # noqa: BLE001  # the border to the job
                    report_failure("begin_forward", failure)
                    span = None
                try:
                    result = original(self, *args, **kwargs)
                except BaseException as error:
                    seams.end(span, type(error).__name__)
                    raise
                try:
                    notes.end(span)
                except Exception as failure:  # noqa: BLE001  # the border to the job
                    report_failure("end", failure)
                return result
            finally:
                nesting.inside = False

        return call

    patches.replace(torch.nn.Module, "__call__", wrap)


def _hook_saving(patches: Patches, seams: Seams) -> None:
    """A file that is written in the loop's own thread is a checkpoint, and no training."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            return _timed(seams, seams.begin_checkpoint(), original, *args, **kwargs)

        return save

    patches.replace(torch, "save", wrap)


def _hook_backward(patches: Patches, seams: Seams, exchanges: Exchanges) -> None:
    """`Tensor.backward` goes through `torch.autograd.backward` too."""
    notes, recorder, tensor = seams.tracker.notes, seams.recorder, torch.Tensor

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                loss = (
                    _read_loss(tensors)
                    if recorder.recording and isinstance(tensors, tensor) and tensors.is_cpu
                    else None
                )
                span = notes.begin_backward("torch", loss)
            except Exception as failure:  # noqa: BLE001  # the border to the job
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
                except Exception as failure:  # noqa: BLE001  # the border to the job
                    report_failure("end", failure)
            return result

        return backward

    patches.replace(torch.autograd, "backward", wrap)


def _read_loss(loss: torch.Tensor) -> float | None:
    """What a tensor of the host holds; never one of a device, which would be made to wait. It has just been computed: a moment later it would be cold.

    Whatever else is asked of a tensor costs as much, so nothing more is asked: one that has many items says so itself.
    """
    try:
        return loss.item()
    except RuntimeError:
        return None


class _Steps(threading.local):
    """The regions of the optimizers that step now in this thread, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Followed | int | None] = []


def _count_around(hook: FrameType | None) -> int:
    """How many steps of optimizers are under way around the one that calls the hook."""
    step = hook.f_back if hook else None
    frames = [step] if step else []
    while frames and frames[-1].f_back:
        frames.append(frames[-1].f_back)
    return sum(frame.f_code is frames[0].f_code for frame in frames[1:])


def _hook_optimizers(patches: Patches, seams: Seams) -> None:
    """Every optimizer's step, through the hooks that torch calls around it.

    torch does not call the one after a step that raised. That is noticed when another step begins
    and is not inside it; or before, by the tracker, when the loop waits for a batch.
    """
    notes = seams.tracker.notes
    steps = _Steps()
    around = guarded("optimizers around", _count_around, 0)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        while steps.open and len(steps.open) > around(inspect.currentframe()):
            seams.end(steps.open.pop(), UNKNOWN)
        try:
            span = notes.begin_optimizer(id(optimizer))
        except Exception as failure:  # noqa: BLE001  # the border to the job
            report_failure("begin_optimizer", failure)
            span = None
        steps.open.append(span)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if steps.open:
            try:
                notes.end(steps.open.pop())
            except Exception as failure:  # noqa: BLE001  # the border to the job
                report_failure("end", failure)

    patches.on_undo(register_optimizer_step_pre_hook(before).remove)
    patches.on_undo(register_optimizer_step_post_hook(after).remove)


def _hook_scaler(patches: Patches, seams: Seams) -> None:
    """The scaler decides whether the optimizer steps: it does not where gradients overflowed."""
    watch = guarded(
        "scaler",
        lambda optimizer, stepped: optimizer.register_step_pre_hook(
            lambda *_: stepped.append(True)
        ),
        None,
    )
    host_scale = guarded("loss scale", _host_scale, None)

    def wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            span = seams.begin_optimizer(id(optimizer))
            stepped: list[bool] = []
            handle = watch(optimizer, stepped)
            try:
                return _timed_scaler(
                    seams,
                    span,
                    stepped if handle else [True],
                    original,
                    self,
                    optimizer,
                    *args,
                    **kwargs,
                )
            finally:
                if handle:
                    handle.remove()

        return step

    def wrap_scale(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(self: Any, outputs: Any) -> Any:
            result = original(self, outputs)
            seams.note_scale(host_scale(self))
            return result

        return scale

    def wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            seams.note_scale(host_scale(self))
            return result

        return update

    patches.replace(torch.amp.GradScaler, "scale", wrap_scale)
    patches.replace(torch.amp.GradScaler, "step", wrap_step)
    patches.replace(torch.amp.GradScaler, "update", wrap_update)


def _timed_scaler(
    seams: Seams,
    span: Followed | int | None,
    stepped: list[bool],
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        seams.end(span, type(error).__name__)
        raise
    if not stepped and args[0].is_enabled():
        seams.name_skipped(span)
    seams.end(span)
    return result


def _host_scale(scaler: Any) -> float | None:
    """The scale where the host has it; on a device it stays unknown, for reading it would wait."""
    scale = getattr(scaler, "_scale", None)
    return float(scale) if scale is not None and scale.device.type == "cpu" else None
