"""The operations of a recorded run, from its spans and collectives.

Runs imported from StragglerAnalysis traces have all of them: spans are named by the type of their
operation, and communicators begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import equals, names_and_codes
from profkit.analysis.estimate import Ints
from profkit.analysis.whatif.operations import (
    COMPUTES,
    KINDS,
    NOWHERE,
    Operations,
    ReplayError,
)
from profkit.trace import Trace
from profkit.vocab import EXPOSED

COORDINATES = "coordinates"
"""Key of a rank's configuration: its place along each dimension."""

ALONE = " without a peer"
"""The end of a communicator's name whose message was never sent."""

_SPAN = re.compile(r"([a-z-]+)(?: chunk (\d{1,9}))?(?: microbatch (\d{1,9}))?")
_LINK = re.compile(r"(forward|backward) from stage \d+ to \d+")
_CHUNK = re.compile(r"model chunk (\d{1,9})")


def operations_of(trace: Trace) -> Operations:
    """Return the operations of a run; raise `ReplayError` if it does not say where ranks are."""
    data_rank, stage = _places(trace)
    spans = trace.spans.filter(pc.not_equal(trace.spans["name"].cast(pa.string()), EXPOSED))
    parts = [_of_spans(spans), _of_collectives(trace.collectives)]
    columns = np.concatenate(parts, axis=1)
    columns = columns[:, columns[0] >= 0]
    if not columns.shape[1]:
        raise ReplayError("the run has no operations of a hybrid-parallel job")
    kind, rank, step, chunk, microbatch, start, end = columns
    on_stage = stage[rank]
    stages = int(on_stage.max()) + 1
    return Operations(
        kinds=KINDS,
        kind=kind,
        rank=rank,
        data_rank=data_rank[rank],
        stage=on_stage,
        step=step,
        sequence=_count_up(kind, rank, step, start),
        chunk=chunk,
        model_chunk=np.where(chunk >= 0, chunk * stages + on_stage, NOWHERE),
        microbatch=microbatch,
        start=start,
        duration=end - start,
    )


def _places(trace: Trace) -> tuple[Ints, Ints]:
    """Return the data-parallel rank and the stage of each rank."""
    most = max((rank.rank for rank in trace.ranks), default=0) + 1
    ranks = max(most, trace.manifest.world_size)
    data_rank, stage = np.full((2, most), NOWHERE, dtype=np.int64)
    for rank in trace.ranks:
        place = rank.manifest.config.get(COORDINATES)
        found = place if isinstance(place, Mapping) else {}
        for column, name in ((data_rank, "dp"), (stage, "pp")):
            number = found.get(name)
            if not isinstance(number, int) or not 0 <= number < ranks:
                why = f"rank {rank.rank} does not say its place in the job's dimensions"
                raise ReplayError(why)
            column[rank.rank] = number
    return data_rank, stage


def _of_spans(spans: pa.Table) -> Ints:
    """Return type, rank, step, chunk, microbatch, start and end of each span."""
    names, codes = names_and_codes(spans["name"])
    described = np.full((len(names) + 1, 3), NOWHERE, dtype=np.int64)
    for place, name in enumerate(names):
        found = _SPAN.fullmatch(name)
        if found is not None and found[1] in KINDS:
            chunk = 0 if found[1] in COMPUTES else NOWHERE
            described[place] = KINDS.index(found[1]), found[2] or chunk, found[3] or NOWHERE
    return _columns(spans, described[codes])


def _of_collectives(rows: pa.Table) -> Ints:
    """Return the same of each collective."""
    names, codes = names_and_codes(rows["communicator"])
    kinds = np.full((len(names) + 1, 2), NOWHERE, dtype=np.int64)
    for place, name in enumerate(names):
        what = name.partition(",")[0].removesuffix(ALONE)
        link = _LINK.fullmatch(what)
        if link is not None:
            kinds[place] = KINDS.index(f"{link[1]}-send"), KINDS.index(f"{link[1]}-recv")
        elif what in KINDS:
            kinds[place] = KINDS.index(what)
    modules, of_row = names_and_codes(rows["module"])
    chunks = np.full(len(modules) + 1, NOWHERE, dtype=np.int64)
    for place, name in enumerate(modules):
        if found := _CHUNK.fullmatch(name):
            chunks[place] = int(found[1])
    received = equals(rows["op"], "recv").astype(np.int64)
    kind = kinds[codes, received]
    described = np.stack([kind, chunks[of_row], np.full(len(kind), NOWHERE)], axis=1)
    return _columns(rows, described)


def _columns(rows: pa.Table, described: Ints) -> Ints:
    """Return the columns of operations, from rows with type, chunk and microbatch."""
    kind, chunk, microbatch = described.T
    rank, step = rows["rank"].to_numpy().astype(np.int64), rows["step"].fill_null(-1).to_numpy()
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    return np.stack([kind, rank, step, chunk, microbatch, start, end])


def _count_up(kind: Ints, rank: Ints, step: Ints, start: Ints) -> Ints:
    """Number the operations of a type on a rank in a step by their start."""
    order = np.lexsort((start, kind, step, rank))
    same = np.ones(len(order) - 1, dtype=bool)
    for column in (kind, step, rank):
        same &= np.diff(column[order]) == 0
    place = np.arange(len(order))
    begins = np.append(True, ~same)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return numbers
