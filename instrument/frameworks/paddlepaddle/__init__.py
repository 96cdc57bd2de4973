"""PaddlePaddle's seams: loader iteration, layer calls, backward, optimizers, the gradient scaler, DataParallel."""

from __future__ import annotations

import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle.base import core, framework
from paddle.io.dataloader.dataloader_iter import (
    _DataLoaderIterMultiProcess,
    _DataLoaderIterSingleProcess,
)
from paddle.jit.sot.psdb import in_sot

from profkit.instrument.device import Device
from profkit.instrument.frameworks.base import Books, Place, Seams
from profkit.instrument.frameworks.paddlepaddle.calls import Function, Nesting, is_traced, timed
from profkit.instrument.frameworks.paddlepaddle.collectives import hook_collectives
from profkit.instrument.frameworks.paddlepaddle.device import on_device, open_device
from profkit.instrument.frameworks.paddlepaddle.optimizers import hook_optimizers, hook_scaler
from profkit.instrument.frameworks.paddlepaddle.programs import hook_programs
from profkit.instrument.frameworks.paddlepaddle.reducer import hook_data_parallel
from profkit.instrument.frameworks.paddlepaddle.workers import hook_workers
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.windows.windows import KernelProfiler


class PaddlePaddle:
    """Hooks Paddle 2.6 and later. A program of the static graph is one call that nothing shows inside: its steps are recorded whole."""

    name = "paddle"
    module = "paddle"

    def install(self, seams: Seams) -> Patches:
        patches = Patches()
        hook_workers(patches, seams)
        _hook_loader(patches, seams)
        _hook_copies(patches, seams)
        _hook_layers(patches, seams)
        backward_done = _hook_exchange(patches, seams)
        _hook_backward(patches, seams, backward_done)
        hook_optimizers(patches, seams)
        hook_scaler(patches, seams)
        _hook_saving(patches, seams)
        hook_programs(patches, seams, FRAMEWORK.name)
        return patches

    def install_inner(self, books: Books) -> tuple[Patches, Callable[[], None]]:
        patches = Patches()
        hook_workers(patches, books)
        return patches, _hook_exchange(patches, books)

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        from profkit.instrument.frameworks.paddlepaddle.windows import PaddleKernels

        profiler = PaddleKernels()
        profiler.hook(patches)
        return profiler

    def watch_profiler(self, patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        from profkit.instrument.frameworks.paddlepaddle.windows import is_profiling, watch_profiler

        watch_profiler(patches, begins)
        return is_profiling

    def device(self) -> Device | None:
        return open_device()

    def device_name(self) -> str:
        return str(paddle.device.get_device()).replace("gpu", "cuda") if on_device() else "cpu"

    def place(self) -> Place | None:
        distributed = paddle.distributed
        if not distributed.is_initialized():
            return None
        return Place(
            distributed.get_rank(),
            distributed.get_world_size(),
            int(os.environ.get("PADDLE_RANK_IN_NODE", "0")),
        )


FRAMEWORK = PaddlePaddle()


def _hook_exchange(patches: Patches, books: Books) -> Callable[[], None]:
    """DataParallel's groups and the job's own collectives, counted together."""
    sequences: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    hook_collectives(patches, books, sequences)
    return hook_data_parallel(patches, books, sequences)


def _hook_loader(patches: Patches, seams: Seams) -> None:
    """Waiting for a batch is data; so is starting the workers. Calling a loader iterates it too."""

    def wrap_next(original: Function) -> Function:
        @functools.wraps(original)
        def next_batch(self: Any) -> Any:
            span = seams.begin_batch()
            try:
                batch = original(self)
            except BaseException as error:
                seams.end_data(
                    span, 0, None if isinstance(error, StopIteration) else type(error).__name__
                )
                raise
            seams.end_batch(span, batch)
            return batch

        return next_batch

    def wrap_iter(original: Function) -> Function:
        @functools.wraps(original)
        def iterate(self: Any) -> Any:
            span = seams.begin_data(starts_epoch=True)
            try:
                return original(self)
            finally:
                seams.end_data(span, 0)

        return iterate

    for iterator in (_DataLoaderIterSingleProcess, _DataLoaderIterMultiProcess):
        patches.replace(iterator, "__next__", wrap_next)
    patches.replace(paddle.io.DataLoader, "__iter__", wrap_iter)


def _hook_copies(patches: Patches, seams: Seams) -> None:
    """`Tensor.to` and `Tensor.cuda` between the batch's arrival and its use are its copy to the device."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            span = None if is_traced() else seams.begin_copy()
            if span is None:
                return original(self, *args, **kwargs)
            return timed(seams, span, original, self, *args, **kwargs)

        return copy

    for name in ("to", "cuda"):
        patches.replace(paddle.Tensor, name, wrap)


def _hook_layers(patches: Patches, seams: Seams) -> None:
    """The outermost call of a layer is a forward. Layers inside it cost two flags, and traced code nothing."""
    nesting = Nesting()
    autocasts = guarded("autocast", _autocasts, instead=False)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if in_sot() or nesting.inside or is_traced():
                return original(self, *args, **kwargs)
            nesting.inside = True
            try:
                if (enabled := autocasts()) is not seams.autocast:
                    seams.note_autocast(enabled)
                span = seams.begin_forward(with_gradients=paddle.is_grad_enabled())
                return timed(seams, span, original, self, *args, **kwargs)
            finally:
                nesting.inside = False

        return call

    patches.replace(paddle.nn.Layer, "__call__", wrap)


def _autocasts() -> bool:
    tracer = framework._dygraph_tracer()  # noqa: SLF001  # no public name tells it
    return tracer is not None and tracer._amp_level != core.AmpLevel.O0  # noqa: SLF001  # as above


def _hook_saving(patches: Patches, seams: Seams) -> None:
    """A file that is written in the loop's own thread is a checkpoint, and no training."""

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            return timed(seams, seams.begin_checkpoint(), original, *args, **kwargs)

        return save

    patches.replace(paddle, "save", wrap)


def _hook_backward(patches: Patches, seams: Seams, done: Callable[[], None]) -> None:
    """`Tensor.backward` and `paddle.autograd.backward` both end here; so does recomputation, inside another backward."""
    nesting = Nesting()
    read_loss = guarded("loss", _read_loss, None)

    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if nesting.inside:
                return original(tensors, *args, **kwargs)
            nesting.inside = True
            span = seams.begin_backward(
                FRAMEWORK.name, read_loss(tensors) if seams.recorder.recording else None
            )
            try:
                result = original(tensors, *args, **kwargs)
            except BaseException as error:
                seams.end(span, type(error).__name__)
                raise
            finally:
                nesting.inside = False
            done()
            seams.end(span)
            return result

        return run_backward

    patches.replace(core.eager, "run_backward", wrap)


def _read_loss(tensors: Any) -> float | None:
    """The loss, where reading it costs nothing: never from a device, which would be made to wait."""
    readable = len(tensors) == 1 and tensors[0].size == 1 and tensors[0].place.is_cpu_place()
    return float(tensors[0].item()) if readable else None
