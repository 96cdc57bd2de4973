"""Sharded jobs as columns: the exchange by dimension, and the stages of a pipeline."""

from __future__ import annotations

from profkit.analysis.exchange_places import BETWEEN
from profkit.analysis.place_costs import Pipeline, ShardedExchange
from profkit.text import byte_size, duration, significant
from profkit.tui.widgets.columns import Column, Columns


def dimension_columns(found: ShardedExchange | None) -> list[Column]:
    """Return what each dimension, operation and phase sends, and how long ranks wait for it."""
    table = Columns(found.places if found else ())
    late = {}
    for each in found.late if found else ():
        late[each.dimension] = each.rank
    table.text("dimension", lambda cost: cost.dimension or None)
    table.text("operation", lambda cost: cost.op)
    table.text("phase", lambda cost: "between" if cost.around == BETWEEN else cost.around)
    table.figure("ranks", lambda cost: cost.group_size, "{:,}".format)
    table.figure("calls", lambda cost: cost.operations, significant)
    table.figure("bytes", lambda cost: cost.bytes, byte_size)
    table.figure("exposed", lambda cost: cost.exposed_ns, duration)
    table.figure("waiting", lambda cost: cost.waiting_ns, duration)
    table.figure("transfer", lambda cost: cost.transfer_ns, duration)
    table.figure("hidden", lambda cost: cost.hidden_ns, duration)
    table.figure("late rank", lambda cost: late.get(cost.dimension))
    return table.columns


def stage_columns(pipeline: Pipeline | None) -> list[Column]:
    """Return how long each rank of a pipeline computes, and the parts of its waits."""
    table = Columns(pipeline.stages if pipeline else ())
    table.figure("rank", lambda stage: stage.rank, searched=True)
    table.text("stages", lambda stage: ", ".join(map(str, stage.stages)) or None)
    table.figure("computes", lambda stage: stage.compute_ns, duration)
    table.figure("waits", lambda stage: stage.exposed_ns, duration)
    table.figure("imbalance", lambda stage: stage.imbalance_ns, duration)
    table.figure("bubble", lambda stage: stage.bubble_ns, duration)
    table.figure("rest", lambda stage: stage.rest_ns, duration)
    return table.columns
