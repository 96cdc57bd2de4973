"""Flame graphs: the sampled stacks of each phase as nested boxes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from profkit.analysis.stack_samples import HELD_PLACE, Place, Samples, read_samples
from profkit.analysis.stacks import LEAST_SHARE, CodeView, share_out
from profkit.frame.estimate import Ints
from profkit.vocab import PHASES

LEAST_BOX = 0.002
"""Boxes of a smaller share of the phase are left out: nobody sees them."""


@dataclass(frozen=True)
class FlameBox:
    """A frame: its depth from the outermost one, and its part of the phase's time.

    `start` and `share` are shares of the phase. Boxes of the same stack overlap in `start`.
    """

    depth: int
    start: float
    share: float
    place: Place
    is_own: bool


@dataclass(frozen=True)
class Flame:
    """The stacks of one phase. `step_ns` is the phase's time on the host per step."""

    phase: str
    step_ns: float
    samples: int
    boxes: tuple[FlameBox, ...]

    @property
    def depth(self) -> int:
        return 1 + max((box.depth for box in self.boxes), default=0)


@dataclass
class _Node:
    place: Place
    is_own: bool
    weight: float = 0.0
    inside: dict[tuple[str, int, str], _Node] = field(default_factory=dict)


def build_flames(
    code: CodeView, stacks: pa.Table, frames: pa.Table, steps: pa.Table, spans: pa.Table, used: Ints
) -> tuple[Flame, ...]:
    """Return a graph for each phase whose lines `code` names, in its order."""
    found = read_samples(stacks, frames, steps, spans, used)
    flames = []
    for part in code.phases:
        if part.judged and part.step_share >= LEAST_SHARE:
            root = _add_stacks(found, part.phase)
            boxes = tuple(_lay_out(root)) if root.weight else ()
            flames.append(Flame(part.phase, part.step_ns, part.samples, boxes))
    return tuple(flames)


def _add_stacks(found: Samples, phase: str) -> _Node:
    """Return the tree of a phase's stacks, with the weights that the lines have."""
    number = PHASES.index(phase) if phase in PHASES else len(PHASES)
    rows, weight, place = share_out(found, np.flatnonzero(found.phase == number))
    root = _Node(Place("", 0, ""), is_own=False)
    leaf = np.where(place == HELD_PLACE, -1, found.leaf[rows])
    pairs, back = np.unique(np.stack([found.rank[rows], leaf]), axis=1, return_inverse=True)
    sums = np.bincount(np.ravel(back), weights=weight, minlength=pairs.shape[1])
    for (rank, innermost), total in zip(pairs.T.tolist(), sums.tolist(), strict=True):
        tree = found.trees[rank]
        stack = [(tree.place(frame), tree.is_own(frame)) for frame in tree.walk(innermost)]
        if innermost < 0:
            stack = [(found.places[HELD_PLACE], False)]
        node = root
        node.weight += total
        for at, is_own in reversed(stack):
            key = at.file, at.line, at.function
            node = node.inside.setdefault(key, _Node(at, is_own))
            node.weight += total
    return root


def _lay_out(root: _Node) -> Iterator[FlameBox]:
    """Yield the boxes below the root, callers first, the longest call of each on the left."""
    waiting = [(root, 0.0, -1)]
    while waiting:
        node, start, depth = waiting.pop()
        share = node.weight / root.weight
        if share < LEAST_BOX:
            continue
        if depth >= 0:
            yield FlameBox(depth, start, share, node.place, node.is_own)
        for inner in sorted(node.inside.values(), key=lambda each: -each.weight):
            waiting.append((inner, start, depth + 1))
            start += inner.weight / root.weight
