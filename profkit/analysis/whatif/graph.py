"""The dependencies between the operations of a step.

They are the same for each step and data-parallel rank, so they are found once. An operation starts
when all operations before it have ended. A communication ends when its last participant has
started and its transfer is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profkit.analysis.whatif.operations import (
    BACKWARD,
    BACKWARD_RECEIVE,
    BACKWARD_SEND,
    CLIP,
    DATA_PARALLEL,
    EMBEDDING,
    FORWARD,
    GARBAGE,
    GATHER,
    LAYERNORM,
    MESSAGES,
    OPTIMIZER,
    SCATTER,
    SEPARATE,
    Grid,
    ReplayError,
)
from profkit.analysis.whatif.template import Messages, Template, computes_of, match_messages

FORWARDS_AHEAD = 2
"""The first backward messages of a stage follow the second forward before its first backward."""

ByKind = dict[str, list[int]]


@dataclass(frozen=True)
class StepGraph:
    """The dependencies of the operations of a step, which are numbered as in `Grid.row`."""

    before: Sequence[Sequence[int]]
    """The operations that must end before each one can start."""
    groups: Sequence[Sequence[int]]
    """The operations that communicate with each other."""
    group_of: Sequence[int]
    """The group of each operation, -1 if it only computes."""
    across: Sequence[bool]
    """True for the groups in which all data-parallel ranks take part."""
    order: Sequence[int]
    """An order in which every operation comes after those before it, and after their groups."""


def build_graph(grid: Grid) -> StepGraph:
    """Return the dependencies of the steps in a grid."""
    template = Template.of(grid)
    messages = match_messages(template)
    builder = _Builder(template, messages)
    for nodes in template.by_stage():
        builder.add_stage(nodes)
    return builder.finish()


class _Builder:
    """Collects the dependencies, stage after stage."""

    def __init__(self, template: Template, messages: Messages) -> None:
        self._template = template
        self._messages = messages
        self._before: list[list[int]] = [[] for _ in template.kind]
        self._overlaps = SEPARATE in template.kind
        """True if gradients are exchanged during the backward."""

    def add_stage(self, nodes: ByKind) -> None:
        """Add the dependencies within a stage."""
        computes = computes_of(self._template, nodes)
        self._chain(computes)
        for kind in MESSAGES:
            self._chain(nodes.get(kind, []))
        self._add_messages(nodes)
        self._add_first_backward(nodes, computes)
        both = [*nodes.get(GATHER, ()), *nodes.get(SCATTER, ())]
        self._chain(self._template.ordered(both))
        self._add_gathers(nodes, computes)
        if self._overlaps:
            self._add_scatters(nodes, computes)
        self._add_end(nodes, computes)

    def _chain(self, nodes: Sequence[int], after: Sequence[int] = ()) -> None:
        """Have each operation follow the one before, and the first one those in `after`."""
        for node in nodes:
            self._before[node] += after
            after = [node]

    def _add_messages(self, nodes: ByKind) -> None:
        """Have a send follow its computation, and a receive come before its own.

        A receive follows the computation before that, of the same direction.
        """
        for kind in MESSAGES:
            computes = {}
            for node in nodes.get(f"{kind.partition('-')[0]}-compute", ()):
                computes[self._template.sequence[node]] = node
            for node in nodes.get(kind, ()):
                compute = self._messages.compute.get(node)
                if compute is None:
                    continue
                if kind.endswith("send"):
                    self._before[node].append(compute)
                    continue
                self._before[compute].append(node)
                earlier = computes.get(self._template.sequence[compute] - 1)
                if earlier is not None:
                    self._before[node].append(earlier)

    def _add_first_backward(self, nodes: ByKind, computes: Sequence[int]) -> None:
        """Have the first backward messages follow the second forward before the first backward."""
        kinds = [self._template.kind[node] for node in computes]
        if BACKWARD not in kinds:
            raise ReplayError(f"a stage has no operation of the type {BACKWARD}")
        place = kinds.index(BACKWARD) - FORWARDS_AHEAD
        if place < 0:
            return
        for kind in (BACKWARD_RECEIVE, BACKWARD_SEND):
            for node in nodes.get(kind, [])[:1]:
                self._before[node].append(computes[place])

    def _add_gathers(self, nodes: ByKind, computes: Sequence[int]) -> None:
        """Have the first forward of a chunk follow the last gathering of its parameters."""
        latest = {self._template.chunk[node]: node for node in nodes.get(GATHER, ())}
        for node in computes:
            if self._template.kind[node] == FORWARD:
                gather = latest.pop(self._template.chunk[node], None)
                if gather is not None:
                    self._before[node].append(gather)

    def _add_scatters(self, nodes: ByKind, computes: Sequence[int]) -> None:
        """Have the first scattering of a chunk's gradients follow its last backward."""
        last: dict[int, int] = {}
        for node in computes:
            chunk = self._template.chunk[node]
            if self._template.kind[node] == BACKWARD:
                known = last.get(chunk, node)
                if self._template.end[node] >= self._template.end[known]:
                    last[chunk] = node
        for node in nodes.get(SCATTER, ()):
            compute = last.pop(self._template.chunk[node], None)
            if compute is not None:
                self._before[node].append(compute)

    def _add_end(self, nodes: ByKind, computes: Sequence[int]) -> None:
        """Add what follows the last computation of a stage, up to its optimizer."""
        last = max(computes, key=lambda node: self._template.end[node])
        collected = nodes.get(GARBAGE, [])
        self._chain(collected[:1], [last])
        after = collected[:1] or [last]
        scatters = nodes.get(SCATTER, [])
        exchange = scatters
        if self._overlaps:
            after = [*scatters[-1:], *after]
            exchange = nodes.get(SEPARATE, [])
        tail = [*nodes.get(LAYERNORM, ()), *nodes.get(EMBEDDING, ()), *exchange]
        tail += [*nodes.get(CLIP, ()), *nodes.get(OPTIMIZER, ())]
        self._chain(tail, after)

    def finish(self) -> StepGraph:
        """Return the graph with the groups of operations that communicate with each other."""
        kinds = self._template.kind
        groups: list[list[int]] = [list(pair.nodes) for pair in self._messages.pairs]
        alone = set(self._messages.alone)
        for node, kind in enumerate(kinds):
            if node in alone or kind in DATA_PARALLEL:
                groups.append([node])
        for kind in (EMBEDDING, CLIP):
            by_sequence: dict[int, list[int]] = {}
            for node, own in enumerate(kinds):
                if own == kind:
                    by_sequence.setdefault(self._template.sequence[node], []).append(node)
            groups += by_sequence.values()
        group_of = [-1] * len(kinds)
        for number, group in enumerate(groups):
            for node in group:
                group_of[node] = number
        across = [kinds[group[0]] in (*DATA_PARALLEL, CLIP) for group in groups]
        order = _sort(self._before, groups, group_of)
        return StepGraph(self._before, groups, group_of, across, order)


def _sort(
    before: Sequence[Sequence[int]], groups: Sequence[Sequence[int]], group_of: Sequence[int]
) -> list[int]:
    """Return an order in which the operations can start; raise if there is none."""
    after: list[list[int]] = [[] for _ in before]
    open_count = list(map(len, before))
    for node, each in enumerate(before):
        for earlier in each:
            after[earlier].append(node)
    to_come = list(map(len, groups))
    ready = [node for node, count in enumerate(open_count) if not count]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        ended: Sequence[int] = [node]
        group = group_of[node]
        if group >= 0:
            to_come[group] -= 1
            ended = () if to_come[group] else groups[group]
        for done in ended:
            for later in after[done]:
                open_count[later] -= 1
                if not open_count[later]:
                    ready.append(later)
    if len(order) < len(before):
        raise ReplayError(
            f"{len(before) - len(order):,} of {len(before):,} operations wait for each other: the "
            "recorded order does not fit the model of a step"
        )
    return order
