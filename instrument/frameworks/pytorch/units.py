"""The module of a collective of FSDP, and the microbatch of a pipeline's message.

Both are private parts of torch. In a version that has others, these columns stay null.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from profkit.instrument.frameworks.pytorch.collectives import CONTEXT, MOST_OPEN, GroupCalls
from profkit.instrument.guard import Patches, guarded

_PARAMETER_GROUPS: Final = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # until torch 2.5
)
_STAGES: Final = "torch.distributed.pipelining.stage"

_SENDS: Final = ("unshard", "post_backward")
"""The methods of FSDP2's groups of parameters that start collectives."""

_OPERATIONS: Final = (
    "get_fwd_recv_ops",
    "get_fwd_send_ops",
    "get_bwd_recv_ops",
    "get_bwd_send_ops",
)
"""The methods of a pipeline's stage that list a microbatch's messages."""


ROOT: Final = "(root)"
"""The module that holds all others; torch gives it no name."""


def hook_units(patches: Patches, calls: GroupCalls) -> Callable[[], None]:
    """Return a function that hooks those parts of torch that the job has imported since."""
    hooked: set[str] = set()
    note = guarded("microbatch", functools.partial(_note_microbatch, calls), None)

    def look() -> None:
        for name in _PARAMETER_GROUPS:
            kind = getattr(sys.modules.get(name), "FSDPParamGroup", None)
            if kind is not None and "units" not in hooked:
                hooked.add("units")
                for method in _SENDS:
                    patches.replace(kind, method, _name_module)
        kind = getattr(sys.modules.get(_STAGES), "_PipelineStageBase", None)
        if kind is not None and "stages" not in hooked:
            hooked.add("stages")
            for method in _OPERATIONS:
                patches.replace(kind, method, functools.partial(_wrap_operations, note))

    return guarded("modules of FSDP", look, None)


def _name_module(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        before, name = CONTEXT.module, getattr(self, "_module_fqn", None)
        CONTEXT.module = ROOT if name == "" else name
        try:
            return original(self, *args, **kwargs)
        finally:
            CONTEXT.module = before

    return send


def _wrap_operations(note: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def list_operations(self: Any, *args: Any, **kwargs: Any) -> Any:
        operations = original(self, *args, **kwargs)
        note(operations, *args, *kwargs.values())
        return operations

    return list_operations


def _note_microbatch(calls: GroupCalls, operations: list[Any], chunk: int) -> None:
    if len(calls.microbatches) >= MOST_OPEN:  # messages that were listed and never sent
        calls.microbatches.clear()
    for operation in operations:
        calls.microbatches[operation.tensor.data_ptr()] = int(chunk)
