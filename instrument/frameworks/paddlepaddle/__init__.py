"""PaddlePaddle: the entry that installs the hooks of all modules of this folder."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import paddle
from paddle.device.cuda.graphs import CUDAGraph  # Paddle 2.6 does not import it itself
from paddle.io.dataloader.dataloader_iter import (
    _DataLoaderIterMultiProcess,
    _DataLoaderIterSingleProcess,
)

from profkit.instrument.captures import CAPTURES
from profkit.instrument.collectives import CallLog
from profkit.instrument.frameworks.base import Books, Framework, Seams
from profkit.instrument.frameworks.paddlepaddle.collectives import hook_groups
from profkit.instrument.frameworks.paddlepaddle.compilations import COMPILERS
from profkit.instrument.frameworks.paddlepaddle.device import on_device, open_device
from profkit.instrument.frameworks.paddlepaddle.identity import describe_loader
from profkit.instrument.frameworks.paddlepaddle.optimizers import (
    hook_optimizers,
    hook_resets,
    hook_scaler,
)
from profkit.instrument.frameworks.paddlepaddle.phases import hook_backward, hook_layers
from profkit.instrument.frameworks.paddlepaddle.programs import hook_programs
from profkit.instrument.frameworks.paddlepaddle.reducer import hook_data_parallel
from profkit.instrument.frameworks.paddlepaddle.stages import hook_pipelines
from profkit.instrument.frameworks.paddlepaddle.tracing import is_traced
from profkit.instrument.frameworks.paddlepaddle.workers import hook_sizes, hook_workers
from profkit.instrument.frameworks.shared import hook_copy, hook_iteration, hook_next, hook_saving
from profkit.instrument.guard import Patches


def install(seams: Seams) -> Patches:
    """Install all hooks."""
    patches = Patches()
    hook_workers(patches, seams)
    sizes = hook_sizes(patches, seams)
    for iterator in (_DataLoaderIterSingleProcess, _DataLoaderIterMultiProcess):
        hook_next(patches, seams, iterator, sizes)
    hook_iteration(
        patches, seams, paddle.io.DataLoader, describe_loader
    )  # calling a loader iterates it, too
    for name in ("to", "cuda"):
        hook_copy(patches, seams, paddle.Tensor, name, is_traced)
    hook_pipelines(patches, seams, hook_layers(patches, seams))
    hook_backward(patches, seams, hook_exchange(patches, seams))
    hook_optimizers(patches, seams)
    hook_resets(patches, seams)
    hook_scaler(patches, seams)
    hook_saving(patches, seams, paddle)
    hook_programs(patches, seams)
    return patches


def hook_exchange(patches: Patches, books: Books) -> Callable[[], None]:
    """Hook captures of graphs, the gradient exchange, and the job's own collectives.

    Buckets and collectives are numbered together. The returned function must be called at the end
    of each backward, inside of it.
    """
    CAPTURES.watch(patches, CUDAGraph)
    sequences: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    clock = books.recorder.clock
    log = CallLog(books.recorder, books.collectives, sequences, clock=clock)
    hook_groups(patches, log)
    return hook_data_parallel(patches, books, sequences)


FRAMEWORK = Framework(
    name="paddle",
    install=install,
    later=COMPILERS,
    device=open_device,
    device_name=lambda: (
        str(paddle.device.get_device()).replace("gpu", "cuda") if on_device() else "cpu"
    ),
)
"""The hooks of Paddle 2.6 and later.

A program of the static graph is one call that shows nothing of its inside, so its steps are
recorded whole.
"""
