"""Single calls of one kernel, the longest first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.idle import HOST
from profkit.analysis.kernels.roofline import place_kernels
from profkit.analysis.kernels.view import chosen_ranks, matrix_precision
from profkit.frame.columns import equals
from profkit.schema import open_schema
from profkit.trace import Trace

MOST_INSTANCES = 1_000
"""At most this many calls of one kernel are listed: nobody reads more."""


@dataclass(frozen=True)
class KernelInstance:
    """One call of a kernel. Its extents are those of its grid and its blocks."""

    row: int
    rank: int
    device: str
    stream: int
    start_ns: int
    duration_ns: int
    step: int | None
    phase: str | None
    op: str | None
    queued_ns: int | None
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    bytes: int | None
    flops: float | None
    bound: str | None
    ceiling_share: float | None

    @classmethod
    def from_row(
        cls, row: int, values: Mapping[str, Any], bound: str | None, ceiling_share: float
    ) -> KernelInstance:
        """Make an instance of a row of the table; an unknown `ceiling_share` is NaN."""
        queued_ns = None
        if values["device"] != HOST and values["launch_ns"] is not None:
            queued_ns = values["start_ns"] - values["launch_ns"]
        return cls(
            row=row,
            rank=values["rank"],
            device=values["device"],
            stream=values["stream"],
            start_ns=values["start_ns"],
            duration_ns=values["end_ns"] - values["start_ns"],
            step=values["step"],
            phase=values["phase"],
            op=values["op"],
            queued_ns=queued_ns,
            grid=tuple(values["grid"]) if values["grid"] else None,
            block=tuple(values["block"]) if values["block"] else None,
            bytes=values["bytes"],
            flops=values["flops"],
            bound=bound,
            ceiling_share=ceiling_share if math.isfinite(ceiling_share) else None,
        )


def calls_of(
    trace: Trace,
    name: str,
    category: str,
    ceilings: Ceilings | None = None,
    rank: int | None = None,
) -> tuple[KernelInstance, ...]:
    """Return the longest calls of one kernel on the ranks that `kernels_of` reads."""
    columns = open_schema("kernels").names
    found: list[KernelInstance] = []
    for each in chosen_ranks(trace, rank):
        kernels, _ = each.select("kernels", columns)
        found += kernel_instances(kernels, name, category, ceilings, trace.manifest.config)
    return tuple(sorted(found, key=lambda call: -call.duration_ns)[:MOST_INSTANCES])


def kernel_instances(
    kernels: pa.Table,
    name: str,
    category: str,
    ceilings: Ceilings | None,
    config: Mapping[str, Any],
) -> tuple[KernelInstance, ...]:
    """Return the longest calls of one kernel in one rank's table, the longest first."""
    rows = np.flatnonzero(equals(kernels["name"], name) & equals(kernels["category"], category))
    if not len(rows):
        return ()
    precision = matrix_precision(config)
    places = place_kernels(kernels, ceilings or Ceilings(), matrix_precision=precision)
    rows = rows[np.argsort(-places.length_ns[rows], kind="stable")[:MOST_INSTANCES]]
    shares = places.share
    found = []
    for row, values in zip(rows.tolist(), kernels.take(pa.array(rows)).to_pylist(), strict=True):
        share = float(shares[row])
        found.append(KernelInstance.from_row(row, values, places.bound(row), share))
    return tuple(found)
