"""Lines of the user's code by phase, from samples of the training thread's stack."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import names_and_codes, places_in, rows_of_rank, step_places
from profkit.analysis.estimate import Z_95, Estimate, Floats, Ints
from profkit.analysis.phases import UNKNOWN, step_times
from profkit.vocab import OWN_CODE, PHASES

FEWEST_SAMPLES = 30
"""With fewer samples of a phase no line is named: half of the lines would be chance."""

LEAST_SHARE = 0.05
"""Phases with a smaller share of the step are not opened, nor are lines shown below this."""

NO_LINE = "no line of the job's own code"
NOT_STORED = "(stack not stored)"


@dataclass(frozen=True)
class Place:
    """A line of code; `below` is the library's function that the line called."""

    file: str
    line: int
    function: str
    below: str = ""


@dataclass(frozen=True)
class LineTime:
    """A line's share of a phase, its time per step in ns, and the samples that saw it."""

    place: Place
    share: Estimate
    step_ns: Estimate
    samples: int


@dataclass(frozen=True)
class PhaseLines:
    """The lines of one phase, longest first. There are none if there are too few samples.

    `step_ns` is the phase's time on the host per step, `independent` the number of samples that
    would give the same intervals if they were independent.
    """

    phase: str
    step_ns: float
    step_share: float
    samples: int
    independent: float
    lines: tuple[LineTime, ...]

    @property
    def judged(self) -> bool:
        return self.samples >= FEWEST_SAMPLES


@dataclass(frozen=True)
class CodeView:
    """Where the training thread was in the used steps. `lost` samples have no readable stack."""

    samples: int
    lost: int
    phases: tuple[PhaseLines, ...]
    folder: str
    """What all files begin with; it is left out where they are shown."""


@dataclass(frozen=True)
class Samples:
    """Samples in used steps: phase, weight, step over all ranks, and place among `places`."""

    phase: Ints
    weight: Floats
    step: Ints
    place: Ints
    below: Ints
    places: tuple[Place, ...]
    callees: tuple[str, ...]
    lost: int


def view_code(
    stacks: pa.Table, frames: pa.Table, steps: pa.Table, spans: pa.Table, used: Ints
) -> CodeView | None:
    """Return the lines of each phase in the used steps; `None` if no stack was sampled."""
    if not stacks.num_rows or not len(used):
        return None
    found = read_samples(stacks, frames, steps, spans, used)
    times = step_times(steps, spans, used)
    means = times.means()
    wall_ns = float(times.wall_ns.mean())
    names = (*PHASES, UNKNOWN)
    opened = []
    for name, step_ns in means.items():
        part = _open_phase(found, names.index(name), step_ns, step_ns / wall_ns if wall_ns else 0.0)
        opened.append(part)
    opened.sort(key=lambda part: -part.step_ns)
    files = set()
    for part in opened:
        files.update(line.place.file for line in part.lines if line.place.line)
    return CodeView(len(found.phase), found.lost, tuple(opened), _common_folder(sorted(files)))


def _common_folder(files: Sequence[str]) -> str:
    """Return the folder, with its separator, that holds all of the files."""
    folders = [os.path.dirname(file) for file in files]
    if not all(folders) or len({folder[0] for folder in folders}) != 1:
        return ""
    return os.path.commonpath(folders).rstrip("/") + "/"


# -- samples ---------------------------------------------------------------------------------------


def read_samples(
    stacks: pa.Table, frames: pa.Table, steps: pa.Table, spans: pa.Table, used: Ints
) -> Samples:
    """Join samples with steps and phases by time, and with the lines that their stacks name."""
    numbers: dict[Place, int] = {}
    callees: dict[str, int] = {"": 0}
    columns: list[Floats] = []
    lost = 0
    for rank in np.unique(stacks["rank"].to_numpy()).tolist():
        own = rows_of_rank(stacks, rank)
        moments = own["time_ns"].to_numpy()
        place = _find_steps(moments, rows_of_rank(steps, rank), used)
        phase = _find_phases(moments, rows_of_rank(spans, rank), own)
        ids = own["stack"].fill_null(-1).to_numpy().astype(np.int64)
        tree = FrameTree(rows_of_rank(frames, rank))
        known = (ids >= 0) & (ids < len(tree))
        lost += int(np.count_nonzero(~known & (place >= 0)))
        kept = np.flatnonzero(known & (place >= 0))
        line = np.zeros(len(kept), dtype=np.int64)
        below = np.zeros(len(kept), dtype=np.int64)
        unique, back = np.unique(ids[kept], return_inverse=True)
        for number, leaf in enumerate(unique.tolist()):
            found, callee = tree.name(leaf)
            line[back == number] = numbers.setdefault(found, len(numbers))
            below[back == number] = callees.setdefault(callee, len(callees))
        every = own["every_ns"].to_numpy()[kept].astype(np.float64)
        step = place[kept] + rank * len(used)
        columns.append(np.array([phase[kept], every, step, line, below]))
    whole = np.concatenate(columns, axis=1)
    phase, step, line, below = (whole[row].astype(np.int64) for row in (0, 2, 3, 4))
    return Samples(phase, whole[1], step, line, below, tuple(numbers), tuple(callees), lost)


def _find_steps(moments: Ints, steps: pa.Table, used: Ints) -> Ints:
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
    phase = np.full(len(moments), len(PHASES), dtype=np.int64)
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

    def name(self, leaf: int) -> tuple[Place, str]:
        """Return the innermost line of the job's own code, and the function that it called.

        Without such a line, the function is the innermost one.
        """
        below = ""
        for frame in self.walk(leaf):
            if self._is_own[frame]:
                return self.place(frame), below
            below = self._functions[self._function[frame]]
        return Place(NO_LINE, 0, ""), self._functions[self._function[leaf]]


# -- lines -----------------------------------------------------------------------------------------


def _open_phase(found: Samples, phase: int, step_ns: float, step_share: float) -> PhaseLines:
    rows = np.flatnonzero(found.phase == phase)
    name = (*PHASES, UNKNOWN)[phase]
    if len(rows) < FEWEST_SAMPLES:
        return PhaseLines(name, step_ns, step_share, len(rows), float(len(rows)), ())
    weight, place = found.weight[rows], found.place[rows]
    _, step = np.unique(found.step[rows], return_inverse=True)
    lines = []
    fewest = float(len(rows))
    for number in np.unique(place).tolist():
        hits = place == number
        share, independent = estimate_share(hits, weight, step)
        fewest = min(fewest, independent)
        below = Counter(found.below[rows[hits]].tolist()).most_common(1)[0][0]
        at = found.places[number]
        if found.callees[below]:
            at = Place(at.file, at.line, at.function, found.callees[below])
        seen = int(np.count_nonzero(hits))
        lines.append(LineTime(at, share, _times(share, step_ns), seen))
    lines.sort(key=lambda line: -line.share.value)
    return PhaseLines(name, step_ns, step_share, len(rows), fewest, tuple(lines))


def _times(share: Estimate, step_ns: float) -> Estimate:
    """Return the time of a share; a phase that is negative, as `unknown` may be, has no bounds."""
    if share.low is None or share.high is None or step_ns <= 0:
        return Estimate(share.value * step_ns)
    return Estimate(share.value * step_ns, share.low * step_ns, share.high * step_ns)


def estimate_share(hits: Ints, weight: Floats, step: Ints) -> tuple[Estimate, float]:
    """Return the share of samples that hit, with Wilson's interval, and their effective number.

    Samples of one step depend on each other: if a line runs for a second in one step of a hundred,
    it has many samples, but was seen once. The spread over the steps shows by how much the samples
    are worth less than independent ones.
    """
    total = weight.sum()
    share = float((weight * hits).sum() / total)
    count = float(total**2 / (weight**2).sum())
    of_step = np.bincount(step, weights=weight)
    hits_of_step = np.bincount(step, weights=weight * hits)
    steps = len(of_step)
    if 0 < share < 1 and steps > 1:
        spread = ((hits_of_step - share * of_step) ** 2).sum() * steps / (steps - 1) / total**2
        count = min(count, share * (1 - share) / spread) if spread > 0 else count
    return wilson(share, count), count


def wilson(share: float, count: float) -> Estimate:
    """Return a share of `count` samples with its 95 % interval, which is within 0 to 1."""
    square = Z_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z_95 * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5
    half /= 1 + square / count
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))
