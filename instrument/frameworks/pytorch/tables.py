"""Tables of functions that were made before our hooks were in the functions' place.

torch hands a tensor's subclass the function that is now a method of `Tensor`. A lazy parameter, or
an image of torchvision, looks it up in a table, which must know ours as it knows the original.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn import parameter

from profkit.instrument.guard import Patches

_TORCHVISION = "torchvision.tv_tensors._torch_function_helpers"


def add_to_tables(
    patches: Patches, original: Callable[..., Any], hooked: Callable[..., Any]
) -> None:
    """Add our function to every table that has the original, until the hooks are undone."""
    for table in _tables():
        if original in table and hooked not in table:
            add = table.add if isinstance(table, set) else table.append
            add(hooked)
            patches.on_undo(functools.partial(table.remove, hooked))


def _tables() -> Iterator[Any]:
    lazy = getattr(parameter, "UninitializedTensorMixin", None)
    yield getattr(lazy, "_allowed_methods", [])
    yield getattr(sys.modules.get(_TORCHVISION), "_FORCE_TORCHFUNCTION_SUBCLASS", set())
