"""Makers of batches, from the pieces of each batch, and the effect of more workers.

The model of more workers is deliberately small: N workers that take X to make a step's batches
deliver them every X / N, and a step lasts as long as the slower of that and of everything but the
wait for data. It assumes that workers slow neither each other nor the job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.kernels.idle import HOST
from profkit.analysis.views.series import Series, bin_readings
from profkit.frame.columns import durations, names_and_codes, rows_of_rank, rows_of_steps
from profkit.frame.device_clock import exposed_spans
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exposed import INPUT_PIECES
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from profkit.vocab import LOADER_WORKER, QUEUE_DEPTH, Phase

WORKER, THREAD, LOOP = "worker", "thread", "loop"
"""The kinds of makers: a process of the loader, a thread next to the loop, or the loop itself."""

MIN_UNEXPLAINED_SHARE: Final = 0.1
"""The model is so rough that it may miss a wait of this share of a step."""

TRIED_WORKERS: Final = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Maker:
    """One worker, thread or loop that makes batches; times in ns per batch, null if not timed."""

    rank: int
    name: str
    kind: str
    batches: int
    making_ns: float
    """The wall time from the start of a batch to its end."""
    read_ns: float
    decode_ns: float
    collate_ns: float | None
    queue_ns: float | None
    no_core_ns: float
    """The rest of the making: waiting for a core, and whatever was not timed."""
    busy_share: float | None
    """The share of the steps' time that it spent making batches."""


@dataclass(frozen=True)
class QueueDepth:
    """Finished batches that waited when the loop asked for its next one, over the whole run."""

    rank: int
    series: Series
    empty_share: float
    """The share of readings in which none waited."""


@dataclass(frozen=True)
class Workers:
    """The model's prediction of a rank's step with so many workers."""

    workers: int
    delivery_ns: float
    """The time between deliveries; with no workers, the time the loop takes to make a batch."""
    step_ns: float
    wait_ns: float
    cores: float
    """Cores that all ranks' workers of a machine would keep busy with decoding and collating."""


@dataclass(frozen=True)
class WorkersModel:
    """The predicted effect of more workers. `enough` of them hide the loader.

    `now` is the prediction for the current number of workers.
    """

    workers: int
    making_ns: float
    """The time that one worker needs for a step's batches."""
    rest_ns: float
    """The time of a step without its wait for data."""
    no_core_share: float
    """The share of the making spent waiting for a core, for which more workers would wait, too."""
    enough: int | None
    """Null if a step takes no time besides its wait."""
    now: Workers
    tried: tuple[Workers, ...]

    @classmethod
    def predict(
        cls, batches: Batches, workers: int, rest_ns: float, per_step: float, ranks: int
    ) -> WorkersModel:
        """Predict a step from the means over all ranks; a thread next to the loop is one worker."""
        made_ns = float(batches.making_ns.mean()) * per_step
        piece_ns = {}
        for piece, values in batches.pieces.items():
            piece_ns[piece] = float(np.nansum(values)) / len(batches.rank) * per_step
        computed_ns = piece_ns[DECODE] + piece_ns[COLLATE]
        enough = None
        if rest_ns > 0:
            enough = math.ceil(made_ns / rest_ns)
        most = 2 * max(workers, enough or 0, 1)
        counts = {workers, *(count for count in TRIED_WORKERS if count <= most)}
        if enough:
            counts.add(enough)
        tried = {}
        for count in sorted(counts):
            delivery_ns = made_ns / max(1, count)
            step_ns = max(delivery_ns, rest_ns) if count else made_ns + rest_ns
            cores = ranks * computed_ns / step_ns
            tried[count] = Workers(count, delivery_ns, step_ns, step_ns - rest_ns, cores)
        return cls(
            workers=workers,
            making_ns=made_ns,
            rest_ns=rest_ns,
            no_core_share=1.0 - (piece_ns[READ] + computed_ns) / made_ns if made_ns > 0 else 0.0,
            enough=enough,
            now=tried[workers],
            tried=tuple(tried.values()),
        )


@dataclass(frozen=True)
class LoaderView:
    """The loaders of a run. Without recorded reads there are no makers and no model."""

    makers: tuple[Maker, ...]
    depths: tuple[QueueDepth, ...]
    steps: int
    step_ns: float | None
    wait_ns: float | None
    """The exposed wait for data per step."""
    wait_share: float | None
    """The share of the steps' time."""
    batches_per_step: float | None
    """The batches of one rank."""
    configured_workers: int | None
    cpu_count: int | None
    shares_cores: bool
    """True if the job itself computes on the cores that the workers would use."""
    model: WorkersModel | None

    @property
    def unexplained_ns(self) -> float:
        """The part of the wait per step that the making of batches does not explain.

        With such a wait, the loader is not what the job waits for, and more workers do not help.
        """
        if self.model is None or self.step_ns is None or self.wait_ns is None:
            return 0.0
        rest_ns = self.wait_ns - self.model.now.wait_ns
        return rest_ns if rest_ns > MIN_UNEXPLAINED_SHARE * self.step_ns else 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(maker.kind for maker in self.makers))


def build_loader_view(trace: Trace) -> LoaderView:
    """Return the view of a run, over its used steps."""
    used = frame_of(trace).basis.used
    ranks = len(trace.ranks)
    wall_ns = durations(rows_of_steps(trace.steps, used)).astype(np.float64)
    batches = find_batches(trace.spans, used)
    rank_wall_ns = float(wall_ns.sum()) / max(1, ranks)
    makers = _makers(batches, training_threads(trace.spans, used), rank_wall_ns)
    step_ns = wait_ns = wait_share = per_step = model = None
    if len(wall_ns):
        step_ns = float(wall_ns.mean())
        wait_ns = total_wait_ns(exposed_spans(trace.spans), used) / len(wall_ns)
        per_step = len(batches.rank) / len(wall_ns)
        if step_ns:
            wait_share = wait_ns / step_ns
        if makers and step_ns and per_step:
            workers = sum(maker.kind != LOOP for maker in makers) / ranks
            rest_ns = step_ns - wait_ns
            model = WorkersModel.predict(batches, round(workers), rest_ns, per_step, ranks)
    return LoaderView(
        makers=makers,
        depths=_depths(trace),
        steps=len(used),
        step_ns=step_ns,
        wait_ns=wait_ns,
        wait_share=wait_share,
        batches_per_step=per_step if makers else None,
        configured_workers=_count(trace.manifest.config, "workers"),
        cpu_count=_count(trace.manifest.environment, "cpu_count"),
        shares_cores=trace.manifest.config.get("device") == HOST,
        model=model,
    )


def _count(content: Mapping[str, Any], name: str) -> int | None:
    value = content.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


def _makers(
    batches: Batches, loops: frozenset[tuple[int, str]], rank_wall_ns: float
) -> tuple[Maker, ...]:
    found = []
    pairs = set(zip(batches.rank.tolist(), batches.maker.tolist(), strict=True))
    for rank, maker in sorted(pairs):
        mine = (batches.rank == rank) & (batches.maker == maker)
        name, making = batches.names[maker], batches.making_ns[mine]
        kind = THREAD
        if (rank, name) in loops:
            kind = LOOP
        if name.startswith(LOADER_WORKER):
            kind = WORKER
        means: dict[str, float | None] = {}
        for piece, values in batches.pieces.items():
            known = values[mine & np.isfinite(values)]
            means[piece] = float(known.mean()) if len(known) else None
        read_ns, decode_ns = means[READ] or 0.0, means[DECODE] or 0.0
        timed_ns = read_ns + decode_ns + (means[COLLATE] or 0.0)
        found.append(
            Maker(
                rank=rank,
                name=name,
                kind=kind,
                batches=len(making),
                making_ns=float(making.mean()),
                read_ns=read_ns,
                decode_ns=decode_ns,
                collate_ns=means[COLLATE],
                queue_ns=means[QUEUE],
                no_core_ns=float(making.mean()) - timed_ns,
                busy_share=float(making.sum()) / rank_wall_ns if rank_wall_ns > 0 else None,
            )
        )
    return tuple(found)


def _depths(trace: Trace) -> tuple[QueueDepth, ...]:
    own = trace.samples.filter(pc.equal(trace.samples["metric"], QUEUE_DEPTH))
    found = []
    for rank in sorted(pc.unique(own["rank"]).to_pylist()):
        rows = rows_of_rank(own, rank)
        time_ns, depth = rows["time_ns"].to_numpy(), rows["value"].to_numpy()
        series = bin_readings(time_ns, depth, int(time_ns.min()), int(time_ns.max()))
        if series is not None:
            found.append(QueueDepth(rank, series, float((depth == 0).mean())))
    return tuple(found)


READ, DECODE, COLLATE, QUEUE = INPUT_PIECES


# Batches that a run's loaders made, from the spans of their pieces.
@dataclass(frozen=True, eq=False)
class Batches:
    """The batches taken in the used steps: the maker of each, and its pieces in ns.

    A piece that was not timed is NaN.
    """

    rank: Ints
    maker: Ints
    names: tuple[str, ...]
    """The names of the makers: the threads of the rows."""
    making_ns: Floats
    pieces: Mapping[str, Floats]


def find_batches(spans: pa.Table, used: Ints) -> Batches:
    """Group the pieces of each batch: on its thread, a batch's rows follow its `read`."""
    rows = data_rows(spans, used)
    rows = rows.filter(pc.is_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)))
    rank, (names, maker) = rows["rank"].to_numpy().astype(np.int64), names_and_codes(rows["thread"])
    order = np.lexsort((np.arange(len(rank)), maker, rank))
    rank, maker = rank[order], maker[order]
    piece = pc.index_in(rows["name"].cast(pa.string()), pa.array(INPUT_PIECES)).to_numpy()[order]
    start, end = rows["start_ns"].to_numpy()[order], rows["end_ns"].to_numpy()[order]
    is_read = piece == INPUT_PIECES.index(READ)
    begins, batch = np.flatnonzero(is_read), np.cumsum(is_read) - 1
    whole = batch >= 0
    if len(begins):
        whole &= (rank == rank[begins][batch]) & (maker == maker[begins][batch])
    pieces = {}
    made = start[begins]
    for place, name in enumerate(INPUT_PIECES):
        mine = whole & (piece == place)
        pieces[name] = np.full(len(begins), np.nan)
        pieces[name][batch[mine]] = (end - start)[mine]
        # A batch is made when it enters the queue.
        done = start[mine] if name == QUEUE else end[mine]
        made[batch[mine]] = np.maximum(made[batch[mine]], done)
    making_ns = (made - start[begins]).astype(np.float64)
    return Batches(rank[begins], maker[begins], tuple(names), making_ns, pieces)


def data_rows(spans: pa.Table, used: Ints, *, outer: bool = False) -> pa.Table:
    """Return the spans of input in the used steps; `outer` asks for those in no other span."""
    rows = rows_of_steps(spans.filter(pc.equal(spans["phase"], Phase.DATA.value)), used)
    return rows.filter(pc.equal(rows["depth"], 0)) if outer else rows


def training_threads(spans: pa.Table, used: Ints) -> frozenset[tuple[int, str]]:
    """Return the ranks' threads that run the steps themselves: they wait for data."""
    waits = data_rows(spans, used, outer=True).group_by(["rank", "thread"]).aggregate([])
    return frozenset(zip(waits["rank"].to_pylist(), waits["thread"].to_pylist(), strict=True))


def total_wait_ns(spans: pa.Table, used: Ints) -> float:
    """Return the wait for data in the used steps, over all ranks."""
    return float(durations(data_rows(spans, used, outer=True)).sum())
