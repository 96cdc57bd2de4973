"""The collectives of one run in the figures that rules compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.pipelines import of_model_dimensions
from profkit.vocab import Phase

STATISTICS_OPS = ("all_gather", "all_reduce")
"""The operations by which layers exchange statistics; weights and buffers take others as well."""

MAX_STATISTICS_BYTES = 1 << 20
"""The statistics of a layer are a few numbers per channel: larger messages are something else."""

_INSIDE = (Phase.FORWARD.value, Phase.BACKWARD.value)
"""The phases in which layers exchange statistics; a loop's own messages come between phases."""


@dataclass(frozen=True)
class Exchanges:
    """The collectives of a run, per step and rank."""

    messages: float
    """Collectives that carry gradients."""
    message_bytes: float
    buckets: int
    """Different gradient buckets."""
    others: float
    """Collectives of layers that carry no gradients, such as synchronised batch normalisation's."""


def summarize_exchanges(rows: pa.Table, spans: pa.Table, steps: int, ranks: int) -> Exchanges:
    """Return the figures of these collectives, of so many steps and ranks."""
    gradients = rows.filter(rows["bucket"].is_valid())
    per_step = 1 / (steps * ranks)
    return Exchanges(
        messages=gradients.num_rows * per_step,
        message_bytes=float(pc.mean(gradients["bytes"]).as_py() or 0.0),
        buckets=len(pc.unique(gradients["bucket"])),
        others=_count_statistics(rows.filter(rows["bucket"].is_null()), spans) * per_step,
    )


def _splits_model(rows: pa.Table) -> pa.ChunkedArray:
    """Return which collectives belong to a model that is split among the ranks."""
    return pc.or_(rows["module"].is_valid(), of_model_dimensions(rows))


def _count_statistics(rows: pa.Table, spans: pa.Table) -> int:
    """Return how many small collectives begin within a forward or a backward."""
    is_op = pc.is_in(rows["op"].cast(pa.string()), pa.array(STATISTICS_OPS))
    is_small = pc.less_equal(rows["bytes"], MAX_STATISTICS_BYTES)
    rows = rows.filter(pc.and_(pc.and_(is_op, is_small), pc.invert(_splits_model(rows))))
    is_inside = pc.is_in(spans["phase"].cast(pa.string()), pa.array(_INSIDE))
    spans = spans.filter(pc.and_(is_inside, pc.equal(spans["depth"], 0)))
    count = 0
    for rank in pc.unique(rows["rank"]).to_pylist():
        own = spans.filter(pc.equal(spans["rank"], rank)).sort_by("start_ns")
        begun = rows.filter(pc.equal(rows["rank"], rank))["start_ns"].to_numpy()
        starts, ends = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        if len(starts):  # the forwards and backwards of a rank do not overlap
            place = np.searchsorted(starts, begun, side="right") - 1
            count += int(((place >= 0) & (begun < ends[place])).sum())
    return count
