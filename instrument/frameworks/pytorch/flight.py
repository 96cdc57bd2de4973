"""PyTorch's flight recorder: the last collectives of this process, of any backend."""

from __future__ import annotations

from typing import Any

import torch


def dump_flight() -> str:
    """Return the recorder's dump as JSON; empty if this torch has none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return ""
    inner: Any = torch._C._distributed_c10d  # noqa: SLF001  # there is no public name
    dump = getattr(inner, "_dump_fr_trace_json", None) or getattr(
        inner, "_dump_nccl_trace_json", None
    )
    if dump is None:
        return ""
    made = dump()
    return made.decode("utf-8", "replace") if isinstance(made, bytes) else str(made)
