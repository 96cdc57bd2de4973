"""Samples of the training thread's stack, joined with steps, phases and lines of code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.doing import number_doings
from profkit.frame.columns import names_and_codes, places_in, split_ranks, step_places
from profkit.frame.estimate import Floats, Ints
from profkit.frame.gaps import NO_GAPS, find_gaps, sum_gaps
from profkit.job_code import CodeLine, mark_own
from profkit.text import shorten
from profkit.vocab import OWN_CODE, PHASES

PROMPT_NS, SWITCH_NS = 1_000_000, 5_000_000
"""A sample that waited longer than the first came late: for the interpreter, or for a processor.

After the second, Python makes a thread release the interpreter, on whatever line it is. In between,
the thread may have released it of its own accord, on a line that says nothing about those before.
"""

HELD = "line not known: the samples came late"
NO_LINE = "no line of the job's own code"
WAITING = "waiting for a task"
"""A worker that has made all the batches that it was asked for."""

_TASK_QUEUES = ("multiprocessing/queues.py", "multiprocessing/connection.py")


_COMPREHENSION = re.compile(r"(?:\.?<locals>)?\.?<(?:genexpr|listcomp|setcomp|dictcomp)>$")

MOST_NAME_CHARS = 40
"""A longer name of a function is cut where it is shown."""

PROMPT, UNSURE, FORCED = range(3)
HELD_PLACE = 0
UNKNOWN_CODE = len(PHASES)


@dataclass(frozen=True)
class Place:
    """A line of code; `below` is the library's function that the line called.

    If a function is meant, it is its most sampled line, and `lines` its first and last sampled one.
    """

    file: str
    line: int
    function: str
    below: str = ""
    lines: tuple[int, int] | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """The identity of a line, or of a function as a whole, in two runs."""
        return self.file, 0 if self.lines else self.line, self.function

    def words(self, folder: str = "") -> str:
        """Return `file:line function`, with the library's function that the line called."""
        below = ""
        if self.below:
            below = f" ({shorten(self.below, MOST_NAME_CHARS)})"
        if not self.line:
            return f"{self.file}{below}"
        name = shorten(self.function, MOST_NAME_CHARS)
        words = f"{self.file.removeprefix(folder)}:{self.line} {name}{below}"
        if self.lines is None:
            return words
        first, last = self.lines
        return f"{words}, whole function" + (f", lines {first} to {last}" if first < last else "")


@dataclass(frozen=True)
class Samples:
    """Samples in used steps: phase, weight, step over all ranks, and place among `places`.

    The phase is that of the time at which the sample was due. The line of a late one is only known
    if the thread was made to release the interpreter, in the same phase. `leaf` is the innermost
    frame in the rank's tree. Samples outside all phases have a `group` for each place in the step,
    and weights in proportion to its time.
    """

    phase: Ints
    weight: Floats
    kind: Ints
    step: Ints
    place: Ints
    below: Ints
    leaf: Ints
    rank: Ints
    group: Ints
    doing: Ints
    places: tuple[Place, ...]
    callees: tuple[str, ...]
    doings: tuple[str, ...]
    trees: Mapping[int, FrameTree]
    lost: int


def read_samples(
    stacks: pa.Table, frames: pa.Table, steps: pa.Table, spans: pa.Table, used: Ints
) -> Samples:
    """Join samples with steps and phases by time, and with the lines that their stacks name."""
    numbers: dict[Place, int] = {Place(HELD, 0, ""): HELD_PLACE}
    callees: dict[str, int] = {"": 0}
    doings: dict[str, int] = {}
    columns: list[Floats] = []
    trees = {}
    lost = 0
    gaps = find_gaps(steps, spans, used)
    steps_of, spans_of, frames_of = map(split_ranks, (steps, spans, frames))
    for rank, own in split_ranks(stacks).items():
        late = own["late_ns"].to_numpy()
        moments = own["time_ns"].to_numpy() - late
        place = find_steps(moments, steps_of[rank], used)
        phase = _find_phases(moments, spans_of[rank], own)
        seen_in = _find_phases(moments + late, spans_of[rank], own)
        kind = kinds_of(late)
        kind[(late >= PROMPT_NS) & (phase != seen_in)] = UNSURE
        ids = own["stack"].fill_null(-1).to_numpy().astype(np.int64)
        tree = trees[rank] = FrameTree(frames_of[rank])
        known = (ids >= 0) & (ids < len(tree))
        lost += int(np.count_nonzero(~known & (place >= 0)))
        kept = np.flatnonzero(known & (place >= 0))
        line, below = name_leaves(tree.name, ids[kept], numbers, callees)
        stands_for = times_of(own)[kept]
        step = place[kept] + rank * len(used)
        of_rank = np.full(len(kept), rank)
        gap = np.where(phase == UNKNOWN_CODE, gaps.get(rank, NO_GAPS).find(moments), -1)[kept]
        doing = number_doings(own, doings)[kept]
        rows = phase[kept], kind[kept], step, line, below, ids[kept], of_rank, doing, gap
        columns.append(np.array([stands_for, *rows]))
    whole = np.concatenate(columns, axis=1)
    phase, kind, step, line, below, leaf, of_rank, doing, gap = whole[1:].astype(np.int64)
    weight, group = weigh_by_gap(whole[0], gap, sum_gaps(gaps.values()))
    names = tuple(numbers), tuple(callees), tuple(doings)
    return Samples(
        phase, weight, kind, step, line, below, leaf, of_rank, group, doing, *names, trees, lost
    )


def times_of(stacks: pa.Table) -> Floats:
    """Return the time in ns for which each sample stands.

    The wait for the next sample begins when one was taken. One that came late therefore stands for
    its delay as well. Dense samples of Python, which is seen every 5 ms at most, would count for a
    small part of its time otherwise.
    """
    every, late = (stacks[name].to_numpy().astype(np.float64) for name in ("every_ns", "late_ns"))
    return np.asarray(every + late)


def kinds_of(late_ns: Ints) -> Ints:
    """Return how far each sample's line is known, from how late it came."""
    return np.where(late_ns < PROMPT_NS, PROMPT, np.where(late_ns < SWITCH_NS, UNSURE, FORCED))


def name_leaves(
    name: Callable[[int], tuple[Place, str]],
    leaves: Ints,
    numbers: dict[Place, int],
    callees: dict[str, int],
) -> tuple[Ints, Ints]:
    """Return the numbers of each sample's line and of the function that it called."""
    unique, back = np.unique(leaves, return_inverse=True)
    named = np.zeros((2, len(unique)), dtype=np.int64)
    for number, leaf in enumerate(unique.tolist()):
        found, callee = name(leaf)
        named[0, number] = numbers.setdefault(found, len(numbers))
        named[1, number] = callees.setdefault(callee, len(callees))
    return named[0, back], named[1, back]


def find_steps(moments: Ints, steps: pa.Table, used: Ints) -> Ints:
    """Return the place among the used steps of each moment; -1 outside them."""
    steps = steps.sort_by("start_ns")
    if not steps.num_rows:
        return np.full(len(moments), -1, dtype=np.int64)
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    near = np.searchsorted(start, moments, side="right") - 1
    inside = (near >= 0) & (moments < end[np.maximum(near, 0)])
    return np.where(inside, step_places(steps, used)[np.maximum(near, 0)], -1)


def _find_phases(moments: Ints, spans: pa.Table, own: pa.Table) -> Ints:
    """Return the phase of the innermost span around each moment, on the thread of the samples."""
    phase = np.full(len(moments), UNKNOWN_CODE, dtype=np.int64)
    threads = pc.unique(own["thread"]).to_pylist()
    spans = spans.filter(pc.is_in(spans["thread"].cast(pa.string()), pa.array(threads)))
    spans = spans.sort_by("start_ns")
    code, level = places_in(spans["phase"], PHASES), spans["depth"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    for depth in np.unique(level).tolist():
        rows = np.flatnonzero((level == depth) & (code >= 0))
        if not len(rows):
            continue
        near = np.searchsorted(start[rows], moments, side="right") - 1
        span = rows[np.maximum(near, 0)]
        inside = (near >= 0) & (moments < end[span])
        phase[inside] = code[span[inside]]
    return phase


class FrameTree:
    """The frames of one rank; an id that was lost ends the table."""

    def __init__(self, frames: pa.Table) -> None:
        frames = frames.sort_by("id")
        whole = int(np.count_nonzero(frames["id"].to_numpy() == np.arange(frames.num_rows)))
        frames = frames.slice(0, whole)
        self._parent = frames["parent"].fill_null(-1).to_pylist()
        self._line = frames["line"].to_pylist()
        self._files, self._file = names_and_codes(frames["file"])
        self._functions, self._function = names_and_codes(frames["function"])
        origins, codes = names_and_codes(frames["origin"])
        self._is_own = codes == (origins.index(OWN_CODE) if OWN_CODE in origins else -2)
        is_called = frames["parent"].is_valid().to_numpy()
        if not (self._is_own & is_called).any():
            self._is_own = np.array(mark_own(list(map(self._code_line, range(len(self))))), bool)

    def __len__(self) -> int:
        return len(self._parent)

    def walk(self, leaf: int) -> Iterator[int]:
        """Yield the frames of a stack, innermost first. In a damaged file, a parent may follow."""
        while 0 <= leaf < len(self):
            yield leaf
            above = self._parent[leaf]
            leaf = above if above < leaf else -1

    def place(self, frame: int) -> Place:
        file, function = self._files[self._file[frame]], self._functions[self._function[frame]]
        return Place(file, self._line[frame], function)

    def _place_in_function(self, frame: int) -> Place:
        """Return the place of a frame; a comprehension is part of the function around it."""
        at = self.place(frame)
        function = at.function
        while found := _COMPREHENSION.search(function):
            function = function[: found.start()]
        if not function:  # older Pythons name no more than the comprehension
            around = [self.place(each) for each in self.walk(frame)]
            inside = [each.function for each in around if each.file == at.file]
            named = [name for name in inside if not _COMPREHENSION.search(name)]
            function = named[0] if named else at.function
        return replace(at, function=function)

    def is_own(self, frame: int) -> bool:
        """Return true for a frame of the job's own code."""
        return bool(self._is_own[frame])

    def _code_line(self, frame: int) -> CodeLine:
        at = self.place(frame)
        return CodeLine(at.file, at.function, at.line, self.is_own(frame))

    def name(self, leaf: int) -> tuple[Place, str]:
        """Return the innermost line of the job's own code, and the function that it called.

        Without such a line, the function is the innermost one.
        """
        below = ""
        for frame in self.walk(leaf):
            if self._is_own[frame]:
                return self._place_in_function(frame), below
            below = self._functions[self._function[frame]]
        return Place(NO_LINE, 0, ""), self._functions[self._function[leaf]]

    def name_in_worker(self, leaf: int) -> tuple[Place, str]:
        """Return the same for a loader's worker, whose loop waits for tasks outside of it."""
        found, below = self.name(leaf)
        frames = list(self.walk(leaf))
        if found.line or len(frames) < 2:
            return found, below
        called = self.place(frames[-2])  # by the loop, which is the outermost frame
        if called.file.endswith(_TASK_QUEUES) and called.function.endswith("get"):
            return Place(WAITING, 0, ""), ""
        return found, below


# Weights of samples between phases, by the time of each such place in a step.
FEWEST_SAMPLES = 10
"""Places with fewer samples are weighed together: alone, their weight would be chance."""


def weigh_by_gap(weight: Floats, gap: Ints, times: Mapping[int, float]) -> tuple[Floats, Ints]:
    """Return weights that are in proportion to the time of each gap, and each sample's group.

    If a place has by chance more samples than its time accounts for, its lines would seem longer.
    `gap` is the pair of phases around each sample, and `times` the time of each pair. Samples with
    a negative gap are in group 0 and keep their weight, as does the sum of the others.
    """
    group = np.zeros(len(gap), dtype=np.int64)
    inside = np.flatnonzero(gap >= 0)
    pairs, back, counts = np.unique(gap[inside], return_inverse=True, return_counts=True)
    group_of = _join_rare(counts)
    took = np.array([max(0.0, times.get(pair, 0.0)) for pair in pairs.tolist()])
    time_of = np.bincount(group_of, weights=took)
    if group_of.max(initial=0) < 1 or not time_of.all():
        return weight, group
    group[inside] = 1 + group_of[back]
    sampled = np.bincount(group_of[back], weights=weight[inside])
    factor = time_of / sampled * (sampled.sum() / time_of.sum())
    weight = weight.copy()
    weight[inside] *= factor[group_of[back]]
    return weight, group


def _join_rare(counts: Ints) -> Ints:
    """Return the group of each place; those with few samples are in one, which has enough."""
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]  # samples of all rarer places
    is_rare = (counts[order] < FEWEST_SAMPLES) | ((before > 0) & (before < FEWEST_SAMPLES))
    group = np.zeros(len(counts), dtype=np.int64)
    group[order] = np.maximum(0, np.cumsum(~is_rare) - (0 if is_rare.any() else 1))
    return group
