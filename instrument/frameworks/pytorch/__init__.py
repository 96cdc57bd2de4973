"""PyTorch: the entry that installs the hooks of all modules of this folder."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from profkit.instrument.captures import CAPTURES
from profkit.instrument.collectives import CallLog
from profkit.instrument.frameworks.base import Books, Framework, Seams
from profkit.instrument.frameworks.pytorch.collectives import GroupCalls
from profkit.instrument.frameworks.pytorch.compilations import CALLBACKS, hook_compiler
from profkit.instrument.frameworks.pytorch.compiler import skip_code
from profkit.instrument.frameworks.pytorch.ddp import Exchanges, hook_ddp
from profkit.instrument.frameworks.pytorch.device import CudaDevice, on_device
from profkit.instrument.frameworks.pytorch.flight import dump_flight
from profkit.instrument.frameworks.pytorch.functional import hook_first_group, hook_functional
from profkit.instrument.frameworks.pytorch.group_hooks import hook_each_group
from profkit.instrument.frameworks.pytorch.group_methods import hook_methods
from profkit.instrument.frameworks.pytorch.identity import describe_loader
from profkit.instrument.frameworks.pytorch.layout import hook_end_of_groups, hook_meshes
from profkit.instrument.frameworks.pytorch.optimizers import (
    hook_optimizers,
    hook_resets,
    hook_scaler,
)
from profkit.instrument.frameworks.pytorch.phases import hook_backward, hook_modules
from profkit.instrument.frameworks.pytorch.schedules import hook_schedules
from profkit.instrument.frameworks.pytorch.stages import (
    hook_messages,
    hook_stages,
)
from profkit.instrument.frameworks.pytorch.tables import add_to_tables
from profkit.instrument.frameworks.pytorch.units import hook_units
from profkit.instrument.frameworks.pytorch.waits import (
    hook_buffers,
    hook_coalescing,
    hook_waits,
)
from profkit.instrument.frameworks.pytorch.workers import hook_sizes, hook_workers
from profkit.instrument.frameworks.shared import (
    hook_copy,
    hook_iteration,
    hook_next,
    hook_saving,
    timed,
)
from profkit.instrument.guard import Patches, guarded


def install(seams: Seams) -> Patches:
    """Install all hooks."""
    patches = Patches()
    hook_workers(patches, seams)
    hook_next(patches, seams, _BaseDataLoaderIter, hook_sizes(patches, seams))
    hook_iteration(patches, seams, DataLoader, describe_loader)
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)
        hook_copy(patches, seams, torch.Tensor, name, torch.compiler.is_compiling)
        hooked = getattr(torch.Tensor, name)
        skip_code(hooked.__code__)
        guarded("tables of functions", add_to_tables, None)(patches, original, hooked)
    skip_code(timed.__code__)
    models = hook_modules(patches, seams)
    looks: list[Callable[[], None]] = []
    exchanges = hook_exchange(patches, seams, looks)
    if looks:
        looks.append(hook_stages(patches, seams, models, exchanges))
        looks[-1]()
        looks.append(hook_schedules(patches, seams))  # around the hooks of stages
        looks[-1]()
        hook_end_of_groups(patches, models.models)
    hook_backward(patches, seams, exchanges, models.nesting)
    hook_optimizers(patches, seams)
    hook_resets(patches, seams)
    hook_scaler(patches, seams)
    hook_saving(patches, seams, torch)
    return patches


def hook_exchange(patches: Patches, books: Books, looks: list[Callable[[], None]]) -> Exchanges:
    """Hook captures of graphs, DDP's buckets, and the job's own collectives.

    Buckets and collectives are numbered together. Later, functions in `looks` hook what the job
    has imported since.
    """
    CAPTURES.watch(patches, torch.cuda.CUDAGraph)
    sequences: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    if torch.distributed.is_available():
        clock = books.recorder.clock
        log = CallLog(books.recorder, books.collectives, sequences, clock=clock)
        calls = GroupCalls(log, looks)
        has_hooks = hasattr(torch.distributed.ProcessGroup, "register_pre_hook")
        looks.append(hook_functional(patches, calls, starts=not has_hooks))
        looks.append(hook_units(patches))
        looks.append(hook_messages(patches, calls))
        if has_hooks:  # torch 2.15 and later
            hook_each_group(patches, calls)
        else:
            hook_methods(patches, calls)
        hook_meshes(patches, calls.look)
        hook_first_group(patches, calls.look)
        calls.look()
        hook_coalescing(patches, calls)
        hook_waits(patches, calls)
        hook_buffers(patches, log)
    return hook_ddp(patches, books, sequences)


FRAMEWORK = Framework(
    name="torch",
    install=install,
    device=lambda: CudaDevice() if on_device() else None,
    later={CALLBACKS: hook_compiler},
    dump_flight=dump_flight,
    device_name=lambda: f"cuda:{torch.cuda.current_device()}" if on_device() else "cpu",
)
"""The hooks of torch 2.4 and later."""
