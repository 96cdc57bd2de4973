"""Where batches are made, and what more workers would change: reading, decoding, collating and queueing by worker.

The model of more workers is as small as it looks: N workers that take X to make a step's batches
deliver them every X / N, and a step lasts as long as the slower of that and of everything but the
wait for data. It takes for granted that workers slow neither each other nor the job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.exposed import INPUT_PIECES, exposed_spans
from profkit.analysis.kernels.device_time import HOST
from profkit.analysis.selection import steady_steps
from profkit.analysis.views.series import Series, bin_readings
from profkit.trace import Trace
from profkit.vocab import Phase

READ, DECODE, COLLATE, QUEUE = INPUT_PIECES
READ_PLACE: Final = 0

WORKER, THREAD, LOOP = "worker", "thread", "loop"
"""Who makes batches: processes of the loader, a thread beside the loop, or the loop itself."""

WORKER_THREAD: Final = "loader worker "
"""How the names of the threads begin by which rows of workers are told."""

DEPTH_METRIC: Final = "queue_depth_batches"
TRIED_WORKERS: Final = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Maker:
    """One worker, thread or loop that makes batches; times in ns a batch. What was not timed is null."""

    rank: int
    name: str
    kind: str
    batches: int
    making_ns: float
    """From the beginning of a batch to its end, by the wall clock."""
    read_ns: float
    decode_ns: float
    collate_ns: float | None
    queue_ns: float | None
    no_core_ns: float
    """What remains of the making: waiting for a core, and whatever was not timed."""
    busy_share: float | None
    """Of the steps' time, what it spent making batches."""


@dataclass(frozen=True)
class QueueDepth:
    """Finished batches that waited when the loop asked for its next one, over the whole run."""

    rank: int
    series: Series
    empty_share: float
    """How often none did."""


@dataclass(frozen=True)
class Workers:
    """What a step of a rank would take with so many workers, by the model."""

    workers: int
    delivery_ns: float
    """How often a step's batches would be ready; with no workers, what the loop takes to make them."""
    step_ns: float
    wait_ns: float
    cores: float
    """Cores that all ranks' workers of a machine would keep busy with decoding and collating."""


@dataclass(frozen=True)
class WorkersModel:
    """What more workers would change. `enough` of them hide the loader; `now` is what the model says of as many as there are."""

    workers: int
    making_ns: float
    """What one worker takes for a step's batches."""
    rest_ns: float
    """What a step takes without its wait for data."""
    no_core_share: float
    """Of the making, what is no reading, decoding and collating: waiting for a core, for which more workers would wait, too."""
    enough: int | None
    """Null where a step takes no time beside its wait."""
    now: Workers
    tried: tuple[Workers, ...]


@dataclass(frozen=True)
class LoaderView:
    """The loaders of a run. Without recorded reads there are no makers and no model."""

    makers: tuple[Maker, ...]
    depths: tuple[QueueDepth, ...]
    steps: int
    step_ns: float | None
    wait_ns: float | None
    """The wait for data a step that nothing hid."""
    wait_share: float | None
    """Of the steps' time."""
    batches_per_step: float | None
    """Of one rank."""
    configured_workers: int | None
    cpu_count: int | None
    shares_cores: bool
    """Whether the job itself computes on the cores that the workers would use."""
    model: WorkersModel | None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(maker.kind for maker in self.makers))


def build_loader_view(trace: Trace) -> LoaderView:
    """The view of a run, over its used steps."""
    used = steady_steps(trace).steps
    steps = trace.steps.filter(pc.is_in(trace.steps["step"], pa.array(used.tolist(), pa.int64())))
    batches = find_batches(trace.spans, used)
    wall_ns = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()).astype(np.float64)
    makers = tuple(
        _makers(batches, _loops(trace.spans, used), float(wall_ns.sum()) / max(1, len(trace.ranks)))
    )
    step_ns = float(wall_ns.mean()) if len(wall_ns) else None
    wait_ns = _waited(trace.spans, used) / len(wall_ns) if len(wall_ns) else None
    per_step = len(batches.rank) / len(wall_ns) if len(wall_ns) else None
    return LoaderView(
        makers=makers,
        depths=tuple(_depths(trace)),
        steps=len(used),
        step_ns=step_ns,
        wait_ns=wait_ns,
        wait_share=wait_ns / step_ns if wait_ns is not None and step_ns else None,
        batches_per_step=per_step if makers else None,
        configured_workers=_whole(trace.manifest.config, "workers"),
        cpu_count=_whole(trace.manifest.environment, "cpu_count"),
        shares_cores=trace.manifest.config.get("device") == HOST,
        model=_model(makers, batches, step_ns, wait_ns, per_step, len(trace.ranks))
        if makers and step_ns and wait_ns is not None and per_step
        else None,
    )


def _whole(content: Mapping[str, Any], name: str) -> int | None:
    value = content.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches that were taken in the used steps: who made each, and its pieces in ns, NaN where one was not timed."""

    rank: Ints
    maker: Ints
    names: tuple[str, ...]
    """Of the makers: the threads of the rows."""
    making_ns: Floats
    pieces: Mapping[str, Floats]


def find_batches(spans: pa.Table, used: Ints) -> Batches:
    """Put the pieces of each batch together: on its thread, a batch's rows follow its `read` and each other."""
    rows = _of_data(spans, used)
    rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)))
    rank, maker, names = rows["rank"].to_numpy().astype(np.int64), *_codes(rows["thread"])
    piece = (
        pc.index_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES))
        .to_numpy()
        .astype(np.int64)
    )
    order = np.lexsort((np.arange(len(rank)), maker, rank))
    rank, maker, piece = rank[order], maker[order], piece[order]
    start, end = (rows[name].to_numpy()[order] for name in ("start_ns", "end_ns"))
    begins = np.flatnonzero(piece == READ_PLACE)
    batch = np.cumsum(piece == READ_PLACE) - 1
    whole = (
        (batch >= 0) & (rank == rank[begins][batch]) & (maker == maker[begins][batch])
        if len(begins)
        else np.zeros(len(batch), dtype=bool)
    )
    pieces = {name: np.full(len(begins), np.nan) for name in INPUT_PIECES}
    made = start[begins]
    for place, name in enumerate(INPUT_PIECES):
        mine = whole & (piece == place)
        pieces[name][batch[mine]] = (end - start)[mine]
        made[batch[mine]] = np.maximum(
            made[batch[mine]], start[mine] if name == QUEUE else end[mine]
        )
    return Batches(
        rank[begins], maker[begins], names, (made - start[begins]).astype(np.float64), pieces
    )


def _of_data(spans: pa.Table, used: Ints) -> pa.Table:
    return spans.filter(
        pc.and_(
            pc.equal(spans["phase"], Phase.DATA.value),
            pc.is_in(spans["step"], pa.array(used.tolist(), pa.int64())),
        )
    )


def _codes(column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    whole = column.combine_chunks()
    return np.asarray(whole.indices.to_numpy(), dtype=np.int64), tuple(whole.dictionary.to_pylist())


def _makers(
    batches: Batches, loops: frozenset[tuple[int, str]], rank_wall_ns: float
) -> Iterator[Maker]:
    for rank, maker in sorted(set(zip(batches.rank.tolist(), batches.maker.tolist(), strict=True))):
        mine, name = (batches.rank == rank) & (batches.maker == maker), batches.names[maker]
        making = batches.making_ns[mine]
        pieces = {piece: _mean(values[mine]) for piece, values in batches.pieces.items()}
        timed = sum(pieces[piece] or 0.0 for piece in (READ, DECODE, COLLATE))
        yield Maker(
            rank=rank,
            name=name,
            kind=WORKER
            if name.startswith(WORKER_THREAD)
            else LOOP
            if (rank, name) in loops
            else THREAD,
            batches=len(making),
            making_ns=float(making.mean()),
            read_ns=pieces[READ] or 0.0,
            decode_ns=pieces[DECODE] or 0.0,
            collate_ns=pieces[COLLATE],
            queue_ns=pieces[QUEUE],
            no_core_ns=float(making.mean()) - timed,
            busy_share=float(making.sum()) / rank_wall_ns if rank_wall_ns > 0 else None,
        )


def _loops(spans: pa.Table, used: Ints) -> frozenset[tuple[int, str]]:
    """The ranks' threads that run the steps themselves: they wait for data."""
    outer = _of_data(spans, used)
    outer = (
        outer.filter(pc.equal(outer["depth"], 0))
        .select(["rank", "thread"])
        .group_by(["rank", "thread"])
        .aggregate([])
    )
    return frozenset(zip(outer["rank"].to_pylist(), outer["thread"].to_pylist(), strict=True))


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _waited(spans: pa.Table, used: Ints) -> float:
    """The exposed wait for data of the used steps, over all ranks."""
    waits = _of_data(exposed_spans(spans), used)
    waits = waits.filter(pc.equal(waits["depth"], 0))
    return float((waits["end_ns"].to_numpy() - waits["start_ns"].to_numpy()).sum())


def _depths(trace: Trace) -> Iterator[QueueDepth]:
    own = trace.samples.filter(pc.equal(trace.samples["metric"], DEPTH_METRIC))
    for rank in sorted(pc.unique(own["rank"]).to_pylist()):
        rows = own.filter(pc.equal(own["rank"], rank))
        time_ns, depth = rows["time_ns"].to_numpy(), rows["value"].to_numpy()
        series = bin_readings(time_ns, depth, int(time_ns.min()), int(time_ns.max()))
        if series is not None:
            yield QueueDepth(rank, series, float((depth == 0).mean()))


def _model(
    makers: tuple[Maker, ...],
    batches: Batches,
    step_ns: float,
    wait_ns: float,
    per_step: float,
    ranks: int,
) -> WorkersModel | None:
    """By the means over all ranks: a thread beside the loop counts as one worker."""
    workers = sum(maker.kind != LOOP for maker in makers) / ranks
    made = float(batches.making_ns.mean()) * per_step
    read, decode, collate = (
        float(np.nansum(batches.pieces[piece])) / len(batches.rank) * per_step
        for piece in (READ, DECODE, COLLATE)
    )
    computed = decode + collate
    rest = step_ns - wait_ns
    enough = math.ceil(made / rest) if rest > 0 else None
    now = round(workers)
    tried = sorted(
        {
            *(count for count in TRIED_WORKERS if count <= 2 * max(now, enough or 0, 1)),
            now,
            *([enough] if enough else []),
        }
    )
    rows = {count: _with_workers(count, made, rest, computed, ranks) for count in tried}
    return WorkersModel(
        workers=now,
        making_ns=made,
        rest_ns=rest,
        no_core_share=1.0 - (read + computed) / made if made > 0 else 0.0,
        enough=enough,
        now=rows[now],
        tried=tuple(rows.values()),
    )


def _with_workers(workers: int, made: float, rest: float, computed: float, ranks: int) -> Workers:
    delivery = made / max(1, workers)
    step = max(delivery, rest) if workers else made + rest
    return Workers(workers, delivery, step, step - rest, ranks * computed / step)
