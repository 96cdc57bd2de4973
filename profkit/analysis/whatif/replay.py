"""Replays all steps at once, with measured or with ideal durations of chosen operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profkit.analysis.device_clock import Bools
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.whatif.graph import StepGraph, build_graph
from profkit.analysis.whatif.operations import COMMUNICATES, Grid, Operations, arrange

SKEW_NS = 10_000_000
"""A transfer or delay below minus this much is no error of clocks: the order was another."""

BATCH_BYTES = 64 << 20
"""Scenarios are replayed together as long as their times fit into this much memory."""


@dataclass(frozen=True, eq=False)
class Replay:
    """The steps of a job, ready to be replayed. Arrays are by operation, step and data rank.

    A communication's duration is that of its transfer, without waiting for its participants.
    """

    grid: Grid
    graph: StepGraph
    kind: Ints
    stage: Ints
    measured: Floats
    ideal: Floats
    """For each operation, the mean of its type; the median if it communicates."""

    @property
    def steps(self) -> Ints:
        return self.grid.steps

    def choose(self, nodes: Bools, data_ranks: Bools) -> Bools:
        """Return a scenario: these operations of these data-parallel ranks are as measured."""
        return np.asarray(nodes[:, None] & data_ranks)

    def step_times(self, scenarios: Sequence[Bools]) -> Floats:
        """Return the step times of each scenario in ns, as if no launch was delayed.

        A scenario is true for each operation and data-parallel rank with its measured duration.
        All others take their ideal ones.
        """
        batch = max(1, BATCH_BYTES // max(1, self.measured.nbytes))
        found = []
        for first in range(0, len(scenarios), batch):
            found.append(self._replay(scenarios[first : first + batch]))
        return np.asarray(np.concatenate(found))

    def delayed_step_times(self) -> Floats:
        """Return the step times with the measured delays: those of the recorded steps.

        The difference from the measured times shows errors of the dependencies.
        """
        every = np.ones((len(self.kind), len(self.grid.data_ranks)), dtype=bool)
        delays = find_delays(self.grid, self.graph)
        return np.asarray(self._replay([every], delays)[0])

    def _replay(self, scenarios: Sequence[Bools], delays: Floats | None = None) -> Floats:
        kept = np.stack(scenarios)[:, :, None, :]
        graph, shape = self.graph, (len(scenarios), *self.measured.shape[1:])
        end: list[Floats] = [np.empty(0)] * len(self.kind)
        arrived: list[Floats] = [np.array(-np.inf)] * len(graph.groups)
        to_come = list(map(len, graph.groups))
        longest = np.zeros(shape)

        def durations(node: int) -> Floats:
            found = np.where(kept[:, node], self.measured[node], self.ideal[node])
            return np.asarray(found, dtype=np.float64)

        for node in graph.order:
            before = graph.before[node]
            start = end[before[0]] if before else np.zeros(shape)
            for each in before[1:]:
                start = np.maximum(start, end[each])
            if delays is not None:
                start = start + delays[node]
            group = graph.group_of[node]
            if group < 0:
                end[node] = start + durations(node)
                longest = np.maximum(longest, end[node])
                continue
            arrived[group] = np.maximum(start, arrived[group])
            to_come[group] -= 1
            if to_come[group]:
                continue
            begin = arrived[group]
            if graph.across[group]:
                begin = np.max(begin, axis=-1, keepdims=True)
            for member in graph.groups[group]:
                end[member] = begin + durations(member)
                longest = np.maximum(longest, end[member])
        return np.asarray(longest.max(axis=-1))


def prepare(operations: Operations) -> Replay:
    """Return a job's steps, ready to be replayed; raise `ReplayError` if they do not fit."""
    grid = arrange(operations)
    graph = build_graph(grid)
    measured = _transfers(grid, graph)
    kind = operations.kind[grid.first]
    ideal = np.zeros(len(kind))
    for each in np.unique(kind).tolist():
        own = kind == each
        mean = np.median if operations.kinds[each] in COMMUNICATES else np.mean
        ideal[own] = mean(measured[own])
    return Replay(grid, graph, kind, operations.stage[grid.first], measured, ideal)


def _transfers(grid: Grid, graph: StepGraph) -> Floats:
    """Return all durations; those of communication from the last participant's start on."""
    operations = grid.operations
    measured = operations.duration[grid.row].astype(np.float64)
    start, end = operations.start[grid.row], operations.end[grid.row]
    for group, across in zip(graph.groups, graph.across, strict=True):
        members = list(group)
        begin = start[members].max(axis=0)
        if across:
            begin = begin.max(axis=-1, keepdims=True)
        transfer = (end[members] - begin).astype(np.float64)
        transfer[transfer <= -SKEW_NS] = 0.0
        measured[members] = transfer
    return measured


def find_delays(grid: Grid, graph: StepGraph) -> Floats:
    """Return how long each operation could have started before it did.

    An operation without any before it could have started with its step.
    """
    operations = grid.operations
    start, end = operations.start[grid.row], operations.end[grid.row]
    begin = start.min(axis=(0, 2))[:, None]
    delays = np.empty(start.shape)
    for node, before in enumerate(graph.before):
        able = np.broadcast_to(begin, start.shape[1:])
        if before:
            able = end[list(before)].max(axis=0)
        delays[node] = start[node] - able
    delays[delays <= -SKEW_NS] = 0.0
    return delays


def measured_step_times(grid: Grid) -> Floats:
    """Return the measured time of each step: from its first start to its last end."""
    operations = grid.operations
    start, end = operations.start[grid.row], operations.end[grid.row]
    return np.asarray((end.max(axis=(0, 2)) - start.min(axis=(0, 2))).astype(np.float64))
