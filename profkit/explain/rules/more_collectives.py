"""A step has more collectives without gradients: metrics, barriers, statistics of layers."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.cell_places import count_by_op
from profkit.explain.evidence import Evidence
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    in_time,
    is_material,
    share_of,
)
from profkit.frame.estimate import Estimate
from profkit.frame.pipelines import MESSAGES, of_model_dimensions
from profkit.text import duration, significant
from profkit.vocab import Phase

_REMEDY = (
    "join them: one message of all numbers, or every so many steps; leave out barriers, which the "
    "exchange of gradients makes anyway; synchronise batch normalisation only if a rank's batch is "
    "too small for statistics of its own"
)


def find(case: Case) -> Cause | None:
    """Compare how often operations are called besides gradients, and how long they take."""
    ledger = case.ledger
    if case.base.world_size != case.target.world_size or case.after.exchanges is None:
        return None
    before, after = case.before.figure(others_by_op), case.after.figure(others_by_op)
    scales = [ledger.batch_factor(run.step_samples) for run in (case.before, case.after)]
    words, added_ns = [], 0.0
    for op, (count, ns) in after.items():
        known, known_ns = before.get(op, (0.0, 0.0))
        if count < known + POLICY.more_collectives or count < POLICY.more_ratio * known:
            continue
        first, then = in_time(ledger, known, count)
        words.append(f"{op} went from {significant(first, 2)} to {significant(then, 2)} per step")
        added_ns += ns * scales[1] - known_ns * scales[0]
    if not words or not is_material(added_ns, ledger):
        return None
    rows = tuple(row.name for row in ledger.rows if row.delta.value > 0)
    held_ns = sum(max(0.0, row.delta.value) for row in ledger.rows) * ledger.samples_per_step
    price = None
    if is_material(held_ns, ledger):  # else another change hides what they take
        price = Estimate(min(added_ns, held_ns))
    evidence = f"{'; '.join(words)}, without those of gradients: {duration(added_ns)} longer in all"
    exchange = Phase.ALLREDUCE.value
    return Cause(
        "more_collectives",
        price,
        share_of(price.value, ledger) if price else None,
        evidence,
        _REMEDY,
        detail=words[0].partition(" ")[0],
        specific=Specific.COUNT,
        rows=(exchange,) if exchange in rows and _holds(case, exchange, added_ns) else rows,
    )


def _holds(case: Case, name: str, ns: float) -> bool:
    """Return true if a row grew by as much."""
    row = case.ledger.find(name)
    grown_ns = 0.0
    if row is not None:
        grown_ns = row.delta.value * case.ledger.samples_per_step
    return grown_ns >= POLICY.place_share * ns


def others_by_op(run: Evidence) -> Mapping[str, tuple[float, float]]:
    """Return calls and ns per step and rank of each operation, without gradient buckets.

    Those of a model that is split among the ranks are its own work.
    """
    rows = run.collectives
    rows = rows.filter(pc.and_(rows["bucket"].is_null(), rows["module"].is_null()))
    rows = rows.filter(pc.invert(of_model_dimensions(rows)))
    rows = rows.filter(pc.invert(pc.is_in(rows["op"].cast(pa.string()), pa.array(MESSAGES))))
    return count_by_op(run, rows)
