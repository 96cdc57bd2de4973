"""The modules of FSDP whose weights and gradients its collectives carry.

They are private parts of torch. In a version that has others, the column stays null.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from profkit.instrument.collectives import HERE
from profkit.instrument.guard import Patches, guarded
from profkit.vocab import ROOT_MODULE

_PARAMETER_GROUPS: Final = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # until torch 2.5
)

_SENDS: Final = ("unshard", "post_backward")
"""The methods of FSDP2's groups of parameters that start collectives."""


def hook_units(patches: Patches) -> Callable[[], None]:
    """Return a function that hooks FSDP, if the job has imported it since."""
    hooked: set[str] = set()

    def look() -> None:
        for name in _PARAMETER_GROUPS:
            kind = getattr(sys.modules.get(name), "FSDPParamGroup", None)
            if kind is not None and not hooked:
                hooked.add(name)
                for method in _SENDS:
                    patches.replace(kind, method, _name_module)

    return guarded("modules of FSDP", look, None)


def _name_module(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        before, name = HERE.module, getattr(self, "_module_fqn", None)
        HERE.module = ROOT_MODULE if name == "" else name
        try:
            return original(self, *args, **kwargs)
        finally:
            HERE.module = before

    return send
