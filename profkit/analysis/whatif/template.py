"""One step of one data-parallel rank, from which the dependencies follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from profkit.analysis.whatif.operations import (
    BACKWARD,
    COMPUTES,
    FORWARD,
    MESSAGES,
    Grid,
    ReplayError,
)

SLACK_NS = 50_000
"""Clocks of different streams agree by at least this much."""


@dataclass(frozen=True)
class Template:
    """One step: each operation is a number from 0, with a value in each list."""

    kind: Sequence[str]
    sequence: Sequence[int]
    stage: Sequence[int]
    chunk: Sequence[int]
    model_chunk: Sequence[int]
    start: Sequence[int]
    end: Sequence[int]
    stages: int

    @classmethod
    def of(cls, grid: Grid) -> Template:
        """Return the first step of the first data-parallel rank."""
        found, rows = grid.operations, grid.first
        stage = found.stage[rows].tolist()
        return cls(
            [found.kinds[each] for each in found.kind[rows].tolist()],
            found.sequence[rows].tolist(),
            stage,
            found.chunk[rows].tolist(),
            found.model_chunk[rows].tolist(),
            found.start[rows].tolist(),
            found.end[rows].tolist(),
            max(stage) + 1,
        )

    @property
    def model_chunks(self) -> int:
        """The number of parts of the model, over all stages."""
        return (max(self.chunk) + 1) * self.stages

    def by_stage(self) -> list[dict[str, list[int]]]:
        """Return the operations of each stage and type in the order of their start."""
        found: list[dict[str, list[int]]] = [{} for _ in range(self.stages)]
        for node in sorted(range(len(self.kind)), key=self._by_start):
            found[self.stage[node]].setdefault(self.kind[node], []).append(node)
        return found

    def ordered(self, nodes: Sequence[int]) -> list[int]:
        """Return operations in the order of their start."""
        return sorted(nodes, key=self._by_start)

    def _by_start(self, node: int) -> tuple[int, int, str]:
        return self.start[node], self.sequence[node], self.kind[node]


class Pair(NamedTuple):
    """A message: its send and its receive, and its number among those of its link."""

    direction: str
    sender: int
    receiver: int
    number: int
    nodes: tuple[int, int]


@dataclass(frozen=True)
class Messages:
    """Sends and receives with their peers, and with the computation that they belong to."""

    pairs: Sequence[Pair]
    alone: Sequence[int]
    """Messages without a peer: at the ends of the model, or recorded and never sent."""
    compute: dict[int, int]
    """The computation that a send follows, or that a receive precedes."""


def match_messages(template: Template) -> Messages:
    """Match each message with its computation and with its peer on the neighbouring stage.

    The n-th send to a stage is the n-th receive there. Of both, those without a peer do not count.
    """
    compute: dict[int, int] = {}
    waiting: dict[tuple[str, int, int, int], list[int]] = {}
    alone = []
    for stage, nodes in enumerate(template.by_stage()):
        for kind in MESSAGES:
            found = _match_computes(template, stage, nodes, kind)
            compute.update(found)
            step_on = _towards(kind)
            count = 0
            for node in nodes.get(kind, ()):
                peer_chunk = -1
                if node in found:
                    peer_chunk = template.model_chunk[found[node]] + step_on
                if not 0 <= peer_chunk < template.model_chunks:
                    alone.append(node)
                    continue
                peer = (stage + step_on) % template.stages
                ends = (stage, peer) if kind.endswith("send") else (peer, stage)
                waiting.setdefault((kind.partition("-")[0], *ends, count), []).append(node)
                count += 1
    pairs = []
    for link, both in waiting.items():
        if len(both) != 2:
            direction, sender, receiver, number = link
            raise ReplayError(
                f"message {number} of the {direction} from stage {sender} to stage {receiver} was "
                "recorded on one side only"
            )
        pairs.append(Pair(*link, (both[0], both[1])))
    return Messages(pairs, alone, compute)


def _towards(kind: str) -> int:
    """Return 1 if the peer of a message is in the next part of the model, else -1."""
    return 1 if kind in ("forward-send", "backward-recv") else -1


def _match_computes(
    template: Template, stage: int, nodes: dict[str, list[int]], kind: str
) -> dict[int, int]:
    """Return the computation of each message of one type that was really sent or received.

    A profiler may record messages that were never sent: receives after the last computation of
    their direction has begun, and sends before the first one has ended.
    """
    direction, _, way = kind.partition("-")
    computes = nodes.get(f"{direction}-compute", [])
    if not computes:
        return {}
    if way == "recv":
        last = max(template.start[node] for node in computes) + SLACK_NS
        real = [node for node in nodes.get(kind, ()) if template.start[node] <= last]
    else:
        first = min(template.end[node] for node in computes) - SLACK_NS
        real = [node for node in nodes.get(kind, ()) if template.end[node] >= first]
    missing = len(computes) - len(real)
    at_end = stage in (0, template.stages - 1)
    if missing and not (at_end and (not real or missing == 1)):
        raise ReplayError(
            f"stage {stage} has {len(real)} {kind} for {len(computes)} {direction}-compute"
        )
    by_sequence = sorted(computes, key=lambda node: template.sequence[node])
    if missing and way == "recv":
        by_sequence = by_sequence[missing:]  # the very first part of the model receives nothing
    return dict(zip(real, by_sequence, strict=False))


def computes_of(template: Template, nodes: dict[str, list[int]]) -> list[int]:
    """Return the computations of a stage in the order of their start."""
    both = [*nodes.get(FORWARD, ()), *nodes.get(BACKWARD, ())]
    if not both:
        raise ReplayError(f"a stage has no operation of the types {' and '.join(COMPUTES)}")
    return template.ordered(both)
