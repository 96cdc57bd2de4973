"""The collectives that carry gradients: backward can hide those, and no others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import codes_of, rows_of_rank
from profkit.analysis.device_clock import Bools
from profkit.analysis.estimate import Ints
from profkit.analysis.intervals import covered_each
from profkit.analysis.whatif.meetings import JOIN, Meetings
from profkit.vocab import MODEL_DIMENSIONS, Phase

SCATTER = "reduce_scatter"
REDUCTIONS = ("all_reduce", SCATTER, "reduce")


def find_gradients(met: Meetings, collectives: pa.Table, spans: pa.Table, used: Ints) -> Bools:
    """Return which collectives of a step carry gradients.

    Nobody knows it of exposed waits, so each of them counts.
    """
    found = np.full(len(met.members), not met.detailed)
    if not met.detailed:
        return found
    place = int(np.argmax(met.kept))
    chosen = collectives["step"].to_numpy() == used[place]
    rows = collectives.filter(pa.array(chosen))
    carries = carries_gradients(rows, spans)
    codes = codes_of(collectives["communicator"])[chosen][carries]
    sequences = rows["sequence"].to_numpy()[carries]
    known = set(zip(codes.tolist(), sequences.tolist(), strict=True))
    for rank, events in met.events.items():
        for event, number in enumerate(met.numbers[rank]):
            if number != JOIN:
                key = events.codes[event], int(events.sequences[event, place])
                found[number] |= key in known
    return found


def carries_gradients(rows: pa.Table, spans: pa.Table) -> Bools:
    """Return which collectives of some steps carry gradients.

    If some are buckets, those do. Otherwise reductions do, unless they are of ranks that share a
    model, or the same ranks reduce in forward as well.
    """
    is_bucket = rows["bucket"].is_valid().to_numpy()
    if is_bucket.any():
        return np.asarray(is_bucket)
    ops = rows["op"].cast(pa.string())
    is_reduced = pc.is_in(ops, pa.array(REDUCTIONS)).to_numpy()
    is_unit = pc.and_(rows["module"].is_valid(), pc.equal(ops, SCATTER)).to_numpy()
    kind = codes_of(rows["communicator"]) * (len(rows) + 1) + codes_of(ops)
    in_forward = is_reduced & _begun_in_forward(rows, spans)
    is_of_model = of_model_dimensions(rows).to_numpy() | np.isin(kind, kind[in_forward])
    return np.asarray(is_reduced & (is_unit | ~is_of_model))


def of_model_dimensions(rows: pa.Table) -> pa.ChunkedArray:
    """Return which collectives are of a dimension along which a model is split."""
    names = rows["dimension"].cast(pa.string())
    found = filter(is_model_dimension, pc.unique(names.drop_null()).to_pylist())
    return pc.is_in(names, pa.array(found, pa.string()))


def is_model_dimension(name: str) -> bool:
    return not MODEL_DIMENSIONS.isdisjoint(name.lower().split("_"))


def _begun_in_forward(rows: pa.Table, spans: pa.Table) -> Bools:
    is_forward = pc.equal(spans["phase"].cast(pa.string()), Phase.FORWARD.value)
    forwards = spans.filter(pc.and_(is_forward, pc.equal(spans["depth"], 0)))
    begun = pc.coalesce(rows["ready_ns"], rows["start_ns"]).to_numpy()
    found, ranks = np.zeros(len(rows), dtype=bool), rows["rank"].to_numpy()
    for rank in np.unique(ranks).tolist():
        own, mine = rows_of_rank(forwards, rank), ranks == rank
        opens, closes = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        found[mine] = covered_each(opens, closes, begun[mine], begun[mine] + 1) > 0
    return found
