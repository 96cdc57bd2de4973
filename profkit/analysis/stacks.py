"""Lines of the user's code by phase, from samples of the training thread's stack."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.analysis.doing import AWAKE, COMPUTING, NO_CORE, RUNNING, say_most
from profkit.analysis.doing import UNKNOWN as UNKNOWN_DOING
from profkit.analysis.stack_samples import (
    FORCED,
    HELD_PLACE,
    PROMPT,
    UNSURE,
    Place,
    Samples,
    read_samples,
)
from profkit.frame.estimate import Z_95, Estimate, Floats, Ints, scale
from profkit.frame.phases import UNKNOWN, step_times
from profkit.trace import Trace
from profkit.vocab import PHASES

FEWEST_SAMPLES = 30
"""With fewer samples of a phase no line is named: half of the lines would be chance."""

LEAST_SHARE = 0.05
"""Phases with a smaller share of the step are not opened, nor are lines shown below this."""


@dataclass(frozen=True)
class LineTime:
    """A line's share of a phase, its time per step in ns, and the samples that saw it.

    By `doubt_ns` its intervals are longer, on each side, than chance alone would make them. `how`
    says what the thread mostly did there; it is empty if that is not known.
    """

    place: Place
    share: Estimate
    step_ns: Estimate
    samples: int
    doubt_ns: tuple[float, float] = (0.0, 0.0)
    how: str = ""


@dataclass(frozen=True)
class HowSpent:
    """Shares of a phase in which the thread computed, waited for a core, and was blocked.

    `no_core` is null if the kernel does not tell it from computing. `mostly` says what blocked it.
    """

    computing: Estimate
    no_core: Estimate | None
    blocked: Estimate
    mostly: str


@dataclass(frozen=True)
class PhaseLines:
    """The lines of one phase, longest first. With too few samples it is not `judged`.

    Then no line of it is named for itself. Its lines are compared with those of another run or rank
    all the same, if the whole run has enough samples: a phase that is short there has few.

    `step_ns` is the phase's time on the host per step, `independent` the number of samples that
    would give the same intervals if they were independent. `doubtful` is the share of samples that
    may be of another line than the one they are counted for. `functions` are the sums of lines by
    function, each named by its longest line.
    """

    phase: str
    step_ns: float
    step_share: float
    samples: int
    independent: float
    lines: tuple[LineTime, ...]
    doubtful: float = 0.0
    functions: tuple[LineTime, ...] = ()
    how: HowSpent | None = None

    @property
    def judged(self) -> bool:
        return self.samples >= FEWEST_SAMPLES


@dataclass(frozen=True)
class CodeView:
    """Lines that the training thread ran in the used steps.

    `lost` samples have no readable stack, `unsure` ones came too late to show their line.
    """

    samples: int
    lost: int
    unsure: int
    phases: tuple[PhaseLines, ...]
    folder: str
    """What all files begin with; it is left out where they are shown."""


def code_of(trace: Trace, used: Ints) -> CodeView | None:
    """Return the lines of each phase in the used steps; `None` if no stack was sampled there."""
    if not trace.stacks.num_rows or not len(used):  # then spans need not be read
        return None
    return view_code(trace.stacks, trace.frames, trace.steps, trace.spans, used)


def view_code(
    stacks: pa.Table, frames: pa.Table, steps: pa.Table, spans: pa.Table, used: Ints
) -> CodeView | None:
    """Return the lines of each phase in the used steps; `None` if no stack was sampled there."""
    if not stacks.num_rows or not len(used):
        return None
    found = read_samples(stacks, frames, steps, spans, used)
    if not len(found.phase) and not found.lost:
        return None
    times = step_times(steps, spans, used)
    means = times.means()
    wall_ns = float(times.wall_ns.mean())
    names = (*PHASES, UNKNOWN)
    opened = []
    for name, step_ns in means.items():
        part = _open_phase(found, names.index(name), step_ns, step_ns / wall_ns if wall_ns else 0.0)
        opened.append(part)
    opened.sort(key=lambda part: -part.step_ns)
    files: set[str] = set()
    for part in opened:
        files.update(line.place.file for line in part.lines if line.place.line)
    unsure = int(np.count_nonzero(found.kind == UNSURE))
    return CodeView(
        len(found.phase), found.lost, unsure, tuple(opened), common_folder(sorted(files))
    )


def common_folder(files: Sequence[str]) -> str:
    """Return the folder, with its separator, that holds all of the files."""
    folders = [os.path.dirname(file) for file in files]
    if not all(folders) or len({folder[0] for folder in folders}) != 1:
        return ""
    return os.path.commonpath(folders).rstrip("/") + "/"


def _open_phase(found: Samples, phase: int, step_ns: float, step_share: float) -> PhaseLines:
    rows = np.flatnonzero(found.phase == phase)
    name, samples = (*PHASES, UNKNOWN)[phase], len(rows)
    if not samples:
        return PhaseLines(name, step_ns, step_share, 0, 0.0, ())
    lines, independent = time_lines(found, rows, step_ns)
    doubtful = float(_doubtful_shares(found, rows)[1])
    groups = _group_by_function(found)
    functions, _ = _time_groups(found, rows, step_ns, groups, is_function=True)
    known = tuple(each for each in functions if each.place.lines)
    how = _find_how(found, rows)
    return PhaseLines(name, step_ns, step_share, samples, independent, lines, doubtful, known, how)


def _find_how(found: Samples, rows: Ints) -> HowSpent | None:
    """Return how a phase is spent; `None` if what the thread did is not known."""
    times = _sum_doings(found, rows)
    if len(rows) < FEWEST_SAMPLES or not times:
        return None
    _, step = np.unique(found.step[rows], return_inverse=True)

    def share_of(*words: str) -> Estimate:
        codes = [number for number, each in enumerate(found.doings) if each in words]
        hits = np.isin(found.doing[rows], codes)
        return estimate_share(hits, found.weight[rows], step)[0]

    asleep = {words: time for words, time in times.items() if words not in AWAKE}
    no_core = None
    if times.get(RUNNING, 0.0) < times.get(COMPUTING, 0.0) + times.get(NO_CORE, 0.0):
        no_core = share_of(NO_CORE)
    return HowSpent(share_of(COMPUTING, RUNNING), no_core, share_of(*asleep), say_most(asleep))


def _main_doing(times: Mapping[str, float]) -> str:
    """Return what most of the time was; nothing if the kernel does not tell."""
    words = max(times, key=lambda words: times[words], default="")
    return "" if words == RUNNING else words


def _sum_doings(found: Samples, rows: Ints) -> dict[str, float]:
    """Return for how long the thread did what, as far as it is known."""
    sums = np.bincount(found.doing[rows], found.weight[rows], minlength=len(found.doings))
    times = dict(zip(found.doings, sums.tolist(), strict=True))
    times.pop(UNKNOWN_DOING, None)
    return {words: time for words, time in times.items() if time > 0}


def time_lines(found: Samples, rows: Ints, step_ns: float) -> tuple[tuple[LineTime, ...], float]:
    """Return the lines in these samples, longest first, and the effective number of samples."""
    return _time_groups(found, rows, step_ns, np.arange(len(found.places)), is_function=False)


def _group_by_function(found: Samples) -> Ints:
    """Return for each place the number of the first one in the same function."""
    first: dict[tuple[str, str], int] = {}
    groups = []
    for number, place in enumerate(found.places):
        key = place.file, place.function
        groups.append(first.setdefault(key, number) if place.line else number)
    return np.array(groups)


def _time_groups(
    found: Samples, rows: Ints, step_ns: float, group: Ints, *, is_function: bool
) -> tuple[tuple[LineTime, ...], float]:
    """Return the time of each group of places under its longest line, longest first."""
    doubt_of_place, doubt = _doubtful_shares(found, rows)
    own_doubt = np.bincount(group, weights=doubt_of_place, minlength=len(group))
    rows, weight, place = share_out(found, rows)
    _, step = np.unique(found.step[rows], return_inverse=True)
    lines = []
    fewest = float(len(rows))
    for number in np.unique(group[place]).tolist():
        hits = group[place] == number
        share, independent = estimate_share(hits, weight, step, found.group[rows])
        fewest = min(fewest, independent)
        below = above = 0.0
        if number != HELD_PLACE:
            below = float(own_doubt[number])
            above = doubt - below
            low = share.value if share.low is None else share.low
            high = share.value if share.high is None else share.high
            share = Estimate(share.value, max(0.0, low - below), min(1.0, high + above))
        at = _name_longest(found, rows[hits], place[hits], weight[hits])
        if is_function and at.line:
            numbers = [found.places[each].line for each in np.unique(place[hits]).tolist()]
            at = dataclasses.replace(at, lines=(min(numbers), max(numbers)))
        seen = int(np.count_nonzero(hits))
        # A negative phase, as `unknown` may be, has no bounds.
        bounded = share if step_ns > 0 else Estimate(share.value)
        doubt_ns = below * max(0.0, step_ns), above * max(0.0, step_ns)
        how = _main_doing(_sum_doings(found, rows[hits]))
        lines.append(LineTime(at, share, scale(bounded, step_ns), seen, doubt_ns, how))
    lines.sort(key=lambda line: -line.share.value)
    return tuple(lines), fewest


def _name_longest(found: Samples, rows: Ints, place: Ints, weight: Floats) -> Place:
    """Return the longest line of some samples, with the function that it called most."""
    longest = int(np.bincount(place, weights=weight).argmax())
    below = Counter(found.below[rows[place == longest]].tolist()).most_common(1)[0][0]
    at = found.places[longest]
    if found.callees[below] and longest != HELD_PLACE:
        return dataclasses.replace(at, below=found.callees[below])
    return at


def share_out(found: Samples, rows: Ints) -> tuple[Ints, Floats, Ints]:
    """Return rows, weights and places of a phase whose lines are known.

    A long stretch of Python is seen from 5 ms after its start, because it releases the interpreter
    only then. The samples that were due in its last 5 ms see the line after it. They are about the
    same stretch as those that were made to release it, so their weight goes to those.
    """
    weight, place, kind = found.weight[rows].copy(), found.place[rows].copy(), found.kind[rows]
    unsure, forced = kind == UNSURE, kind == FORCED
    if not unsure.any():
        return rows, weight, place
    if not forced.any():
        place[unsure] = HELD_PLACE
        return rows, weight, place
    weight[forced] *= 1 + weight[unsure].sum() / weight[forced].sum()
    return rows[~unsure], weight[~unsure], place[~unsure]


def _doubtful_shares(found: Samples, rows: Ints) -> tuple[Floats, float]:
    """Return the share of samples that count for each place but are doubtful, and the sum.

    A line that holds the interpreter has hardly any prompt samples. On a line that has some, as
    many forced ones may have come late because the machine was busy: they may be of a line before.
    """
    weight, place, kind = found.weight[rows], found.place[rows], found.kind[rows]
    prompt, forced, unsure = (
        np.bincount(place, weights=weight * (kind == each), minlength=len(found.places))
        for each in (PROMPT, FORCED, UNSURE)
    )
    own = np.minimum(prompt, forced)
    total = own.sum() + unsure.sum()
    if forced.any():
        own += forced * unsure.sum() / forced.sum()
    return own / weight.sum(), float(total / weight.sum())


def estimate_share(
    hits: npt.NDArray[np.bool_], weight: Floats, step: Ints, group: Ints | None = None
) -> tuple[Estimate, float]:
    """Return the share of hits with Wilson's interval, and the effective number of samples.

    Samples of one step depend on each other: if a line runs for a second in one step of a hundred,
    it has many samples, but was seen once. The spread over the steps shows by how much the samples
    are worth less than independent ones. How much of the time is of each `group` is known, so that
    the samples are worth more if the line is in one of them.
    """
    total = weight.sum()
    share = float((weight * hits).sum() / total)
    count = float(total**2 / (weight**2).sum())
    if group is None:
        group = np.zeros(len(weight), dtype=np.int64)
    _, group = np.unique(group, return_inverse=True)
    of_group = np.bincount(group, weights=weight)
    count_of = of_group**2 / np.bincount(group, weights=weight**2)
    share_of = np.bincount(group, weights=weight * hits) / of_group
    part = of_group / total
    chance = float((part**2 * share_of * (1 - share_of) / count_of).sum())
    residual_of_step = np.bincount(step, weights=weight * (hits - share_of[group]))
    steps = len(residual_of_step)
    gain = 1.0
    if len(part) > 1:
        apart = float((part**2 * _careful_variance(share_of, count_of)).sum())
        gain = float(_careful_variance(share, count)) / apart
    if 0 < share < 1 and steps > 1 and chance > 0:
        spread = float((residual_of_step**2).sum()) * steps / (steps - 1) / total**2
        gain /= max(1.0, spread / chance)
    return wilson(share, count * gain), count * gain


def _careful_variance(share: Any, count: Any) -> Any:
    """Return the variance of a share, which is above zero even if all samples are alike."""
    square = Z_95**2
    middle = (share * count + square / 2) / (count + square)
    return middle * (1 - middle) / (count + square)


def wilson(share: float, count: float) -> Estimate:
    """Return a share of `count` samples with its 95 % interval, which is within 0 to 1."""
    if not count > 0:
        return Estimate(share, 0.0, 1.0)
    square = Z_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z_95 * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5
    half /= 1 + square / count
    low, high = min(middle - half, share), max(middle + half, share)  # a share of 1 is rounded
    return Estimate(share, max(0.0, low), min(1.0, high))
