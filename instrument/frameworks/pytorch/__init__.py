"""PyTorch: the entry that installs the hooks of all modules of this folder."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from profkit.instrument.captures import CAPTURES
from profkit.instrument.device import Device
from profkit.instrument.frameworks.base import Books, Place, Seams
from profkit.instrument.frameworks.pytorch.collectives import hook_collectives
from profkit.instrument.frameworks.pytorch.ddp import Exchanges, hook_ddp
from profkit.instrument.frameworks.pytorch.device import CudaDevice, on_device
from profkit.instrument.frameworks.pytorch.optimizers import hook_optimizers, hook_scaler
from profkit.instrument.frameworks.pytorch.phases import (
    hook_backward,
    hook_copies,
    hook_loader,
    hook_modules,
)
from profkit.instrument.frameworks.pytorch.workers import hook_workers
from profkit.instrument.frameworks.shared import hook_saving
from profkit.instrument.guard import Patches
from profkit.instrument.windows.windows import KernelProfiler
from profkit.rank import local_rank_of


class PyTorch:
    """Hooks torch 2.4 and later."""

    name = "torch"
    module = "torch"

    def install(self, seams: Seams) -> Patches:
        patches = Patches()
        hook_workers(patches, seams)
        hook_loader(patches, seams)
        hook_copies(patches, seams)
        hook_modules(patches, seams)
        exchanges = _hook_exchange(patches, seams)
        hook_backward(patches, seams, exchanges)
        hook_optimizers(patches, seams)
        hook_scaler(patches, seams)
        hook_saving(patches, seams, torch)
        CAPTURES.watch(patches, torch.cuda.CUDAGraph)
        return patches

    def install_inner(self, books: Books) -> tuple[Patches, Callable[[], None]]:
        patches = Patches()
        hook_workers(patches, books)
        CAPTURES.watch(patches, torch.cuda.CUDAGraph)
        return patches, _hook_exchange(patches, books).end_of_backward

    def kernel_profiler(self, patches: Patches, *, operators: bool) -> KernelProfiler:
        from profkit.instrument.frameworks.pytorch.windows import PyTorchKernels, watch_profiler

        profiler = PyTorchKernels(operators=operators)
        watch_profiler(patches, profiler.give_way)
        return profiler

    def watch_profiler(self, patches: Patches, begins: Callable[[], None]) -> Callable[[], bool]:
        from profkit.instrument.frameworks.pytorch.windows import is_profiling, watch_profiler

        watch_profiler(patches, begins)
        return is_profiling

    def device(self) -> Device | None:
        return CudaDevice() if on_device() else None

    def device_name(self) -> str:
        return f"cuda:{torch.cuda.current_device()}" if on_device() else "cpu"

    def place(self) -> Place | None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        return Place(distributed.get_rank(), distributed.get_world_size(), local_rank_of() or 0)


FRAMEWORK = PyTorch()


def _hook_exchange(patches: Patches, books: Books) -> Exchanges:
    """Hook DDP's buckets and the job's own collectives, which are numbered together."""
    sequences: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    hook_collectives(patches, books, sequences)
    return hook_ddp(patches, books, sequences)
