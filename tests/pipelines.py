"""Steps of a pipeline-parallel job as a StragglerAnalysis trace, computed operation by operation.

The times follow from a schedule (one forward, one backward, also interleaved), durations that are
drawn, and the dependencies in words. So a replay of the trace has known answers.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

MEAN_NS: Mapping[str, int] = {
    "forward-compute": 20_000_000, "backward-compute": 40_000_000, "forward-send": 400_000,
    "forward-recv": 400_000, "backward-send": 400_000, "backward-recv": 400_000,
    "params-all-gather": 9_000_000, "grads-reduce-scatter": 12_000_000,
    "separate-grads-all-reduce": 3_000_000, "layernorm-grads-all-reduce": 50_000,
    "embedding-grads-all-reduce": 5_000_000, "optimizer-clip-main-grad": 2_000_000,
    "optimizer": 15_000_000, "gc": 0,
}  # fmt: skip
"""The mean durations of operations; of communication, without waiting."""

COMPUTING = ("forward-compute", "backward-compute", "optimizer", "gc")
SPREAD = 0.1
"""Durations differ from their mean by up to this share."""


class Op(NamedTuple):
    """An operation of one step: its worker, type, and number among those of its type there."""

    data_rank: int
    stage: int
    kind: str
    number: int


@dataclass(frozen=True)
class PipelinePlan:
    """The shape of a job, and who is slow in it."""

    data_ranks: int = 2
    stages: int = 4
    chunks: int = 1
    microbatches: int = 8
    steps: int = 3
    tensor_ranks: int = 1
    overlaps: bool = False
    """Whether gradients are exchanged during the backward."""
    seed: int = 0
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """The factor by which computing takes longer on a worker: data-parallel rank and stage."""
    delay_ns: int = 0
    """The longest time between the end of what an operation waits for and its own start."""
    is_ideal: bool = False
    """Whether each operation takes the mean of its type; the median if it communicates."""

    def draw(self, step: int, op: Op) -> tuple[int, int]:
        """Return the duration and the delay of an operation."""
        kinds = list(MEAN_NS)
        random = np.random.default_rng((self.seed, step, *op[:2], kinds.index(op.kind), op.number))
        noise, late = random.random(2)
        factor = 1 + SPREAD * (2 * noise - 1)
        if op.kind in COMPUTING:
            factor *= self.slow.get(op[:2], 1.0)
        return round(MEAN_NS[op.kind] * factor), round(late * self.delay_ns)


class Work(NamedTuple):
    """A forward or backward of a microbatch in a chunk of a stage."""

    is_forward: bool
    chunk: int
    microbatch: int


def schedule(plan: PipelinePlan, stage: int) -> list[Work]:
    """Return what a stage computes, in its order."""
    ahead = plan.stages - stage - 1
    if plan.chunks > 1:
        ahead = 2 * ahead + (plan.chunks - 1) * plan.stages
    forwards = list(_turns(plan, is_forward=True))
    backwards = list(_turns(plan, is_forward=False))
    ahead = min(ahead, len(forwards))
    made = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        made += [forward, backward]
    return made + backwards[len(forwards) - ahead :]


def _turns(plan: PipelinePlan, *, is_forward: bool) -> Iterator[Work]:
    """Yield the microbatches in groups of one per stage, each group through all chunks."""
    group = plan.stages if plan.chunks > 1 else plan.microbatches
    for first in range(0, plan.microbatches, group):
        for turn in range(plan.chunks):
            chunk = turn if is_forward else plan.chunks - 1 - turn
            for microbatch in range(first, min(first + group, plan.microbatches)):
                yield Work(is_forward, chunk, microbatch)


@dataclass(frozen=True)
class PipelineTrace:
    """The operations of all steps as columns, and the time of each step."""

    plan: PipelinePlan
    columns: Mapping[str, list[Any]]
    step_ns: list[int]

    def write(self, folder: Path, name: str = "made", *, kind: str = "float64") -> Path:
        """Write the trace and its meta file."""
        import pyarrow.parquet as pq

        plan, path = self.plan, folder / f"trace-{name}.parquet"
        table = pa.table(dict(self.columns))
        for column in ("start_ts", "duration"):
            place = table.schema.get_field_index(column)
            table = table.set_column(place, column, table[column].cast(kind))
        pq.write_table(table, path)
        ranks = plan.data_ranks * plan.stages * plan.tensor_ranks
        sizes = {
            "trial_name": name, "run_id": 0, "dp_size": plan.data_ranks, "dsp_size": 1,
            "pp_size": plan.stages, "tp_size": plan.tensor_ranks, "vpp_size": plan.chunks,
            "world_size": ranks,
        }  # fmt: skip
        lines = [f"{key}: {value}\n" for key, value in sizes.items()]
        (folder / f"meta-{name}.yaml").write_text("".join(lines))
        return path


def run_pipeline(plan: PipelinePlan) -> PipelineTrace:
    """Return the trace of a job, with the time of each step."""
    names = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc",
             "gmc", "mb_id")  # fmt: skip
    rows: dict[str, list[Any]] = {name: [] for name in names}
    step_ns = []
    ideal = _ideal(plan) if plan.is_ideal else {}
    for step in range(plan.steps):
        made = _Step(plan, step, ideal)
        made.run()
        step_ns.append(max(made.end.values()) - min(made.start.values()))
        for op, start in made.start.items():
            chunk, model_chunk, microbatch = made.part_of(op)
            rank = (op.stage * plan.data_ranks + op.data_rank) * plan.tensor_ranks
            values = (
                *(op.data_rank, op.stage, rank, step, op.kind, start / 1e9),
                *((made.end[op] - start) / 1e9, op.number, chunk, model_chunk, microbatch),
            )
            for name, value in zip(names, values, strict=True):
                rows[name].append(value)
    return PipelineTrace(plan, rows, step_ns)


def _ideal(plan: PipelinePlan) -> dict[str, float]:
    """Return the ideal duration of each type, from the durations that are drawn."""
    drawn: dict[str, list[int]] = {}
    measured = dataclasses.replace(plan, is_ideal=False)
    for step in range(plan.steps):
        for op in _Step(measured, step, {}).before:
            drawn.setdefault(op.kind, []).append(plan.draw(step, op)[0])
    found = {}
    for kind, values in drawn.items():
        mean = statistics.fmean if kind in COMPUTING else statistics.median
        found[kind] = float(mean(values))
    return found


class _Step:
    """One step of all workers: what each operation waits for, and then its times."""

    def __init__(self, plan: PipelinePlan, step: int, ideal: Mapping[str, float]) -> None:
        self._plan, self._step, self._ideal = plan, step, ideal
        self.before: dict[Op, list[Op]] = {}
        self.meets: dict[Op, frozenset[Op]] = {}
        self.start: dict[Op, int] = {}
        self.end: dict[Op, int] = {}
        self._parts: dict[Op, tuple[int, int, int]] = {}
        self._unsent: set[Op] = set()
        """Messages that are recorded and have no peer."""
        for data_rank in range(plan.data_ranks):
            for stage in range(plan.stages):
                self._add_worker(data_rank, stage)
        self._add_groups()

    def part_of(self, op: Op) -> tuple[int, int, int]:
        """Return chunk, chunk of the model and microbatch of an operation, -1 for none."""
        return self._parts.get(op, (-1, -1, -1))

    def _add_worker(self, data_rank: int, stage: int) -> None:
        plan, last, counts = self._plan, None, {"forward": 0, "backward": 0}
        worker = data_rank, stage
        for chunk in range(plan.chunks if plan.data_ranks > 1 else 0):
            self._follow(Op(*worker, "params-all-gather", chunk), "params-all-gather", chunk)
            self._parts[Op(*worker, "params-all-gather", chunk)] = chunk, -1, -1
        computes: list[Op] = []
        for work in schedule(plan, stage):
            direction = "forward" if work.is_forward else "backward"
            op = Op(*worker, f"{direction}-compute", counts[direction])
            counts[direction] += 1
            self.before[op] = [last] if last else []
            model_chunk = work.chunk * plan.stages + stage
            self._parts[op] = work.chunk, model_chunk, work.microbatch
            self._add_messages(op, direction, model_chunk, computes)
            last = op
            computes.append(op)
            gather = Op(*worker, "params-all-gather", work.chunk)
            if work.is_forward and work.microbatch == 0 and gather in self.before:
                self.before[op].append(gather)
        self._add_end(worker, computes)

    def _add_messages(self, op: Op, direction: str, chunk: int, computes: list[Op]) -> None:
        """Add the receive before a computation and the send after it.

        An interleaved schedule records one for each computation, even if there is no peer.
        """
        worker, plan = op[:2], self._plan
        first, last = (0, plan.stages * plan.chunks - 1)[:: 1 if direction == "forward" else -1]
        always = plan.chunks > 1
        if chunk != first or (always and op.number):
            receive = self._next(worker, f"{direction}-recv")
            if op.number:
                self.before[receive].append(op._replace(number=op.number - 1))
            self.before[op].append(receive)
            if chunk == first:
                self._unsent.add(receive)
            self._follow_second_forward(receive, direction, computes)
        if chunk != last or always:
            send = self._next(worker, f"{direction}-send")
            self.before[send].append(op)
            if chunk == last:
                self._unsent.add(send)
            self._follow_second_forward(send, direction, [*computes, op])

    def _follow_second_forward(self, message: Op, direction: str, computes: list[Op]) -> None:
        """Have the first backward messages follow the second forward before the first backward."""
        forwards = [each for each in computes if each.kind == "forward-compute"]
        if direction == "backward" and not message.number and len(forwards) > 1:
            self.before[message].append(forwards[-2])

    def _next(self, worker: tuple[int, int], kind: str) -> Op:
        number = sum(op[:2] == worker and op.kind == kind for op in self.before)
        op = Op(*worker, kind, number)
        self._follow(op, kind, number)
        return op

    def _follow(self, op: Op, kind: str, number: int) -> None:
        """Add an operation that follows the one before of a type."""
        earlier = Op(op.data_rank, op.stage, kind, number - 1)
        self.before[op] = [earlier] if number else []

    def _add_end(self, worker: tuple[int, int], computes: list[Op]) -> None:
        """Add what follows the last backward of a worker."""
        plan, stage = self._plan, worker[1]
        self.before[Op(*worker, "gc", 0)] = [computes[-1]]
        scatters = [Op(*worker, "grads-reduce-scatter", each) for each in range(plan.chunks)]
        if plan.data_ranks == 1:
            scatters = []
        tail = [Op(*worker, "layernorm-grads-all-reduce", 0)]
        if stage in (0, plan.stages - 1):
            tail.append(Op(*worker, "embedding-grads-all-reduce", 0))
        after = [Op(*worker, "gc", 0)]
        previous = [Op(*worker, "params-all-gather", plan.chunks - 1)]
        for place, scatter in enumerate(scatters):
            chunk = plan.chunks - 1 - place
            self._parts[scatter] = chunk, -1, -1
            self.before[scatter] = [each for each in previous if each in self.before]
            previous = [scatter]
            if plan.overlaps:
                own = [op for op in computes if op.kind == "backward-compute"]
                own = [op for op in own if self._parts[op][0] == chunk]
                self.before[scatter].append(own[-1])
        if plan.overlaps and scatters:
            after.append(scatters[-1])
            tail.append(Op(*worker, "separate-grads-all-reduce", 0))
        else:
            tail += scatters
        tail += [Op(*worker, "optimizer-clip-main-grad", 0), Op(*worker, "optimizer", 0)]
        for op in tail:
            self.before.setdefault(op, []).extend(after)
            after = [op]

    def _add_groups(self) -> None:
        """Find the operations that end only when all of them have started."""
        groups: dict[object, list[Op]] = {}
        counts: dict[object, int] = {}
        for op in sorted(self.before, key=lambda each: each.number):
            key: object = op.kind, op.number
            if op.kind in (
                "params-all-gather",
                "grads-reduce-scatter",
                "separate-grads-all-reduce",
            ):
                key = op.kind, op.number, op.stage
            elif op.kind == "embedding-grads-all-reduce":
                key = op.kind, op.data_rank
            elif op.kind.endswith(("-send", "-recv")):
                key = op
                if op not in self._unsent:
                    direction, _, way = op.kind.partition("-")
                    towards = 1 if direction == "forward" else -1
                    sender = op.stage if way == "send" else (op.stage - towards) % self._plan.stages
                    number = counts.get((op[:2], op.kind), 0)
                    counts[op[:2], op.kind] = number + 1
                    key = direction, sender, op.data_rank, number
            elif op.kind != "optimizer-clip-main-grad":
                continue
            groups.setdefault(key, []).append(op)
        for members in groups.values():
            for op in members:
                self.meets[op] = frozenset(members)

    def run(self) -> None:
        """Compute the times of all operations."""
        waiting = dict(self.before)
        while waiting:
            started = [op for op in waiting if all(each in self.end for each in waiting[op])]
            if not started:
                raise RuntimeError(f"operations wait for each other, such as {next(iter(waiting))}")
            for op in started:
                ready = max((self.end[each] for each in waiting.pop(op)), default=0)
                self.start[op] = ready + self._plan.draw(self._step, op)[1]
                if op not in self.meets:
                    self.end[op] = self.start[op] + self._duration(op)
            for op in started:
                group = self.meets.get(op, frozenset())
                if op not in self.end and all(each in self.start for each in group):
                    begin = max(self.start[each] for each in group)
                    for each in group:
                        self.end[each] = begin + self._duration(each)

    def _duration(self, op: Op) -> int:
        if self._ideal:
            return round(self._ideal[op.kind])
        return self._plan.draw(self._step, op)[0]
