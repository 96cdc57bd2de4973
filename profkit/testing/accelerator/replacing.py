"""Replaces attributes of other people's modules for some time."""

from __future__ import annotations

import contextlib
from typing import Any


def put(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Replace an attribute until the stack closes."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    if own is None:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, own)
