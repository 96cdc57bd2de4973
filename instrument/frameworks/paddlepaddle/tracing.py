"""Tell calls that build a graph from those that run."""

from __future__ import annotations

import paddle
from paddle.jit.sot.psdb import in_sot


def is_traced() -> bool:
    """Return true if this call builds a graph instead of running.

    `in_sot` is false when it is called, but `to_static` takes it as true while it reads our code,
    and reads no further. Without it, each layer would break the graph.
    """
    return in_sot() or not paddle.in_dynamic_mode()
