"""Stack samples of the training thread by rank, step, phase and function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis import stack_samples
from profkit.analysis.doing import COMPUTING, NO_CORE
from profkit.analysis.stack_samples import HELD_PLACE, Place
from profkit.analysis.worker_lines import read_samples_of_workers
from profkit.frame.estimate import Floats, Ints
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from profkit.vocab import PHASES

MOST_NAME = 40

Function = tuple[str, str]
"""A file and a function: edits elsewhere move its lines, and not its name."""

NO_FUNCTION: Function = ("", "")
"""What no function of the job's own code is known of."""


class Waits(NamedTuple):
    """For how much of the time on the way to compute a thread had no core, by so many samples."""

    share: float
    samples: int


def _find_waits(doings: Sequence[str], doing: Ints, weight: Floats) -> Waits:
    sums = []
    for words in (NO_CORE, COMPUTING):
        number = doings.index(words) if words in doings else -1
        sums.append((float(weight[doing == number].sum()), int((doing == number).sum())))
    (waited, late), (ran, busy) = sums
    return Waits(waited / ((waited + ran) or 1.0), late + busy)


@dataclass(frozen=True)
class Chosen:
    """Samples of some ranks and steps of a phase, and the time of the phase that they share."""

    places: tuple[Place, ...]
    doings: tuple[str, ...]
    place: Ints
    doing: Ints
    weight: Floats
    phase_ns: float
    """The time per step and rank of the phase, or of all workers."""

    def by_function(self) -> Mapping[Function, Mapping[str, float]]:
        """Return the time per step and rank of each function of the job's own code.

        It is divided by what the thread did there. Other samples are under `NO_FUNCTION`.
        """
        total, count = float(self.weight.sum()), len(self.doings)
        sums: dict[Function, dict[str, float]] = {}
        if total <= 0:
            return sums
        pair = self.place * count + self.doing
        for each in np.unique(pair).tolist():
            place, words = each // count, self.doings[each % count]
            at = self.places[place]
            is_own = at.line and place != HELD_PLACE
            of = sums.setdefault((at.file, at.function) if is_own else NO_FUNCTION, {})
            ns = float(self.weight[pair == each].sum()) / total * self.phase_ns
            of[words] = of.get(words, 0.0) + ns
        return sums

    @property
    def waits(self) -> Waits:
        return _find_waits(self.doings, self.doing, self.weight)

    def hits(self, function: Function) -> int:
        return int(np.isin(self.place, self._of(function)).sum())

    def words(self, function: Function) -> str:
        """Return the longest line of a function, with the function."""
        own = self._of(function)
        sums = []
        for place in own:
            sums.append(float(self.weight[self.place == place].sum()))
        at = self.places[own[int(np.argmax(sums))]]
        name = at.function
        if len(name) > MOST_NAME:
            name = name.rpartition(".")[2]
        return f"{at.file.rpartition('/')[2]}:{at.line} {name}"

    def _of(self, function: Function) -> list[int]:
        return [
            number
            for number, at in enumerate(self.places)
            if at.line and (at.file, at.function) == function
        ]


@dataclass(frozen=True)
class Samples:
    """All samples of the used steps."""

    trace: Trace
    used: Ints
    found: stack_samples.Samples

    @property
    def waits(self) -> Waits:
        """Those of the whole run, which the kernel has measured exactly."""
        return _find_waits(self.found.doings, self.found.doing, self.found.weight)

    def select(
        self,
        phase: str,
        ranks: tuple[int, ...],
        steps: Ints | None,
        *,
        others: bool = False,
        other_ranks: bool = False,
    ) -> Chosen:
        """Return the samples of a phase, or those of the other steps or ranks."""
        found, frame = self.found, frame_of(self.trace)
        names = (*PHASES, UNKNOWN)
        kept = found.phase == (names.index(phase) if phase in names else -1)
        number = self.used[found.step % len(self.used)]
        chosen = self.used
        if steps is not None:
            chosen = np.setdiff1d(self.used, steps) if others else steps
            kept &= np.isin(number, chosen)
        own = [rank for rank in frame.basis.ranks if not ranks or (rank in ranks) != other_ranks]
        kept &= np.isin(found.rank, own)
        means = []
        for rank in own:
            means.append(frame.means_of(rank, chosen).get(phase, 0.0))
        return Chosen(
            found.places,
            found.doings,
            found.place[kept],
            found.doing[kept],
            found.weight[kept],
            float(np.mean(means)) if means else 0.0,
        )


def choose_workers(trace: Trace, used: Ints, ranks: tuple[int, ...]) -> Chosen | None:
    """Return the samples of the loaders' workers of some ranks, or of all; `None` without any."""
    stacks = trace.worker_stacks
    if ranks:
        stacks = stacks.filter(pc.is_in(stacks["rank"], pa.array(ranks, pa.int32())))
    if not stacks.num_rows or not len(used):
        return None
    found = read_samples_of_workers(stacks, trace.frames, trace.steps, used)
    if not len(found.place):
        return None
    step_ns = float(found.weight.sum()) / len(used) / len(found.trees)
    return Chosen(found.places, found.doings, found.place, found.doing, found.weight, step_ns)


def read_samples(trace: Trace, used: Ints) -> Samples | None:
    """Return the samples of the used steps, or `None` if no stack was sampled there."""
    stacks: pa.Table = trace.stacks
    if not stacks.num_rows or not len(used):
        return None
    found = stack_samples.read_samples(stacks, trace.frames, trace.steps, trace.spans, used)
    if not len(found.phase):
        return None
    return Samples(trace, used, found)
