"""PaddlePaddle: the entry that installs the hooks of all modules of this folder."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import paddle

from profkit.instrument.captures import CAPTURES
from profkit.instrument.device import Device
from profkit.instrument.frameworks.base import Books, Place, Seams
from profkit.instrument.frameworks.paddlepaddle.collectives import hook_collectives
from profkit.instrument.frameworks.paddlepaddle.device import on_device, open_device
from profkit.instrument.frameworks.paddlepaddle.optimizers import hook_optimizers, hook_scaler
from profkit.instrument.frameworks.paddlepaddle.phases import (
    hook_backward,
    hook_copies,
    hook_layers,
    hook_loader,
)
from profkit.instrument.frameworks.paddlepaddle.programs import hook_programs
from profkit.instrument.frameworks.paddlepaddle.reducer import hook_data_parallel
from profkit.instrument.frameworks.paddlepaddle.workers import hook_workers
from profkit.instrument.frameworks.shared import hook_saving
from profkit.instrument.guard import Patches
from profkit.instrument.windows.windows import KernelProfiler
from profkit.rank import local_rank_of


class PaddlePaddle:
    """Hooks Paddle 2.6 and later.

    A program of the static graph is one call that shows nothing of its inside, so its steps are
    recorded whole.
    """

    name = "paddle"
    module = "paddle"

    def install(self, seams: Seams) -> Patches:
        patches = Patches()
        hook_workers(patches, seams)
        hook_loader(patches, seams)
        hook_copies(patches, seams)
        hook_layers(patches, seams)
        backward_done = _hook_exchange(patches, seams)
        hook_backward(patches, seams, backward_done)
        hook_optimizers(patches, seams)
        hook_scaler(patches, seams)
        hook_saving(patches, seams, paddle)
        hook_programs(patches, seams)
        CAPTURES.watch(patches, paddle.device.cuda.graphs.CUDAGraph)
        return patches

    def install_inner(self, books: Books) -> tuple[Patches, Callable[[], None]]:
        patches = Patches()
        hook_workers(patches, books)
        CAPTURES.watch(patches, paddle.device.cuda.graphs.CUDAGraph)
        return patches, _hook_exchange(patches, books)

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        from profkit.instrument.frameworks.paddlepaddle.windows import PaddleKernels, watch_profiler

        profiler = PaddleKernels()
        watch_profiler(patches, profiler.give_way)
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
        return Place(distributed.get_rank(), distributed.get_world_size(), local_rank_of() or 0)


FRAMEWORK = PaddlePaddle()


def _hook_exchange(patches: Patches, books: Books) -> Callable[[], None]:
    """Hook DataParallel's groups and the job's own collectives, which are numbered together."""
    sequences: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    hook_collectives(patches, books, sequences)
    return hook_data_parallel(patches, books, sequences)
