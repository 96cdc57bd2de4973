"""Stack samples of the training thread by rank, step, phase and function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis import stack_samples
from profkit.analysis.stack_samples import HELD_PLACE, Place
from profkit.frame.estimate import Floats, Ints
from profkit.frame.phases import UNKNOWN
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from profkit.vocab import PHASES

MOST_NAME = 40

Function = tuple[str, str]
"""A file and a function: edits elsewhere move its lines, and not its name."""


@dataclass(frozen=True)
class Chosen:
    """Samples of some ranks and steps of a phase, and the time of the phase that they share."""

    places: tuple[Place, ...]
    place: Ints
    weight: Floats
    phase_ns: float
    """The phase's time per step and rank."""

    def by_function(self) -> Iterator[tuple[Function, float]]:
        """Yield each function of the job's own code with its time per step and rank."""
        total = float(self.weight.sum())
        if total <= 0:
            return
        sums: dict[Function, float] = {}
        for place in np.unique(self.place).tolist():
            at = self.places[place]
            if at.line and place != HELD_PLACE:
                key = at.file, at.function
                sums[key] = sums.get(key, 0.0) + float(self.weight[self.place == place].sum())
        for key, weight in sums.items():
            yield key, weight / total * self.phase_ns

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
            found.place[kept],
            found.weight[kept],
            float(np.mean(means)) if means else 0.0,
        )


def read_samples(trace: Trace, used: Ints) -> Samples | None:
    """Return the samples of the used steps, or `None` if no stack was sampled there."""
    stacks: pa.Table = trace.stacks
    if not stacks.num_rows or not len(used):
        return None
    found = stack_samples.read_samples(stacks, trace.frames, trace.steps, trace.spans, used)
    if not len(found.phase):
        return None
    return Samples(trace, used, found)
