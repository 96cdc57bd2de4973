"""What each step of one run cost, in whole nanoseconds over all ranks: the material of the ledger.

Everything stays an integer sum until two runs are compared, so that parts add up to the wall clock
exactly. `unknown` is the wall time minus all other parts; it may be negative, and is never clamped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import FEWEST_STEPS, Estimate, Floats, Ints
from profkit.analysis.exposed import share_input, split_allreduce
from profkit.analysis.kernels.windows import window_steps
from profkit.analysis.overview import steady_steps, warm_up_of
from profkit.analysis.own_cost import span_price_ns, switched_cost, without
from profkit.analysis.phases import UNKNOWN, step_times
from profkit.analysis.rank_sums import SpanSums, sum_spans
from profkit.analysis.selection import Selection
from profkit.errors import UnreadableError
from profkit.schema import open_schema
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.vocab import PHASES, Phase

INPUT = "input"
REST = "rest"
OWN = "profkit itself"
OUTLIER = "outlier"
EVALUATION = "evaluation or checkpoint"

FAR_OUT = 5.0
"""A step that takes more than this many times the median is an outlier,"""

RARE = 0.02
"""as long as no more than this share of the steps is: what happens more often is how the job runs."""

_COMPUTES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)


@dataclass(frozen=True)
class Apart:
    """Steps that are not in the averages: how many, and what they took longer than as many of the others, per step of the run."""

    reason: str
    steps: int
    excess_ns: float


@dataclass(frozen=True)
class RunCosts:
    """The used steps of one run, each a sum over the ranks.

    `parts` are exclusive and add up to `wall_ns`; `inside` opens some of them into finer ones, which
    add up to them. `beside` is time that overlapped with the step's own work and cost nothing.
    """

    wall_ns: Ints
    samples: Ints
    ranks: int
    parts: Mapping[str, Ints]
    inside: Mapping[str, Mapping[str, Ints]]
    beside: Mapping[str, Ints]
    selection: Selection
    apart: tuple[Apart, ...] = field(default=())
    repeats: tuple[int, ...] = ()
    """How many of the steps each run has, where they are those of several."""
    switched: Estimate | None = None
    """What a step took longer than those for which profkit was switched off, in ns: it lies somewhere in all parts. Null where that was not tried."""

    @property
    def steps(self) -> int:
        return len(self.wall_ns)

    @property
    def steps_needed(self) -> int:
        """How many steps more would give intervals."""
        return max(0, FEWEST_STEPS - self.steps)

    @property
    def samples_known(self) -> bool:
        """Whether the run says what it trained on; one without used steps does not say that it did not."""
        return bool(self.samples.any()) or not self.steps

    @property
    def knows_phases(self) -> bool:
        return any(name in self.parts for name in _COMPUTES)

    def per_step(self) -> RunCosts:
        """The same with a step of a rank in the place of a sample, for runs that do not say what they trained on."""
        return dataclasses.replace(self, samples=np.full(self.steps, self.ranks, dtype=np.int64))

    def without_phases(self) -> RunCosts:
        """The same with input, where it is known, and a rest: what a log supports."""
        kept = {INPUT: self.parts[INPUT]} if INPUT in self.parts else {}
        inside = {name: split for name, split in self.inside.items() if name in kept}
        return dataclasses.replace(
            self, parts={**kept, REST: self.wall_ns - sum(kept.values())}, inside=inside
        )

    def without_own(self) -> RunCosts:
        """The same with profkit's own time where it lies while nobody knows of it."""
        if OWN not in self.parts:
            return self
        kept = {name: ns for name, ns in self.parts.items() if name not in {OWN, UNKNOWN}}
        return dataclasses.replace(
            self, parts={**kept, UNKNOWN: self.parts[UNKNOWN] + self.parts[OWN]}
        )

    def of_wall_alone(self) -> RunCosts:
        """The same with nothing but the wall clock."""
        return dataclasses.replace(self, parts={REST: self.wall_ns}, inside={})


def run_costs(trace: Trace, sums: SpanSums | None = None) -> RunCosts:
    """What the steps of a run cost; an `UnreadableError` where not one step of it can be read.

    `sums` are those of the steady steps' spans, where somebody has made them rank by rank.
    """
    steps = trace.steps
    if not steps.num_rows:
        raise UnreadableError(f"{safe_text(str(trace.path))}: holds no steps to compare")
    steady = steady_steps(trace)
    sums = sum_spans(trace.spans, steady.steps) if sums is None else sums
    selection = _set_far_apart(steps, sums, steady)
    costs = _cost_of_sums(
        steps,
        sums.take(np.isin(steady.steps, selection.steps)),
        trace.collectives,
        selection,
        span_price_ns(trace.samples),
    )
    return dataclasses.replace(costs, switched=_switched(trace))


def _switched(trace: Trace) -> Estimate | None:
    return switched_cost(
        without(trace.steps, window_steps(trace.samples)), warm_up_of(trace, trace.steps)
    )


def cost_steps(
    steps: pa.Table, spans: pa.Table, collectives: pa.Table, selection: Selection
) -> RunCosts:
    """The costs of the selected steps, from the tables alone."""
    return _cost_of_sums(steps, sum_spans(spans, selection.steps), collectives, selection)


def _cost_of_sums(
    steps: pa.Table,
    sums: SpanSums,
    collectives: pa.Table,
    selection: Selection,
    price_ns: float | None = None,
) -> RunCosts:
    used = selection.steps
    wall_ns, samples = _walls(steps, used)
    parts = {
        INPUT if name == Phase.DATA.value else name: ns
        for name, ns in sums.by_phase(sums.exposed).items()
    }
    inside, beside = {}, dict(_hidden_wait(sums)) if sums.on_device else {}
    if INPUT in parts and (split := share_input(sums.pieces, sums.waits)):
        inside[INPUT] = {**split, "waiting otherwise": parts[INPUT] - sum(split.values())}
    if found := split_allreduce(collectives, sums.windows, used):
        inside[Phase.ALLREDUCE.value] = {
            **found.parts,
            "otherwise": parts.get(Phase.ALLREDUCE.value, np.zeros_like(wall_ns))
            - sum(found.parts.values()),
        }
        beside["allreduce under backward"] = found.hidden_ns
    known = {name: split for name, split in inside.items() if name in parts}
    ranks = max(1, len(pc.unique(steps["rank"])))
    if price_ns is not None and not sums.on_device:
        parts[OWN] = _whole(np.asarray(price_ns * sums.outer, dtype=np.float64))
    parts[UNKNOWN] = wall_ns - sum(parts.values())
    return RunCosts(
        wall_ns, samples, ranks, parts, known, beside, selection, tuple(_apart(steps, selection))
    )


def _walls(steps: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """Wall time and samples of each used step, as sums over the ranks: `step_times` gives means, of which the sums are whole again."""
    times = step_times(steps, open_schema("spans").empty_table(), used)
    ranks = max(1, len(pc.unique(steps["rank"])))
    return _whole(times.wall_ns * ranks), _whole(times.samples)


def _whole(values: Floats) -> Ints:
    return np.asarray(np.rint(values), dtype=np.int64)


def _hidden_wait(sums: SpanSums) -> Iterator[tuple[str, Ints]]:
    """The host's wait for input that the device did not notice, because it still had work."""
    row = PHASES.index(Phase.DATA.value)
    hidden = sums.host[row] - sums.exposed[row]
    if hidden.any():
        yield "input under the device's work", hidden


def set_outliers_apart(steps: pa.Table, spans: pa.Table, selection: Selection) -> Selection:
    """Leave out the few steps that are far longer than all others, by what they did."""
    return _set_far_apart(steps, sum_spans(spans, selection.steps), selection)


def _set_far_apart(steps: pa.Table, sums: SpanSums, selection: Selection) -> Selection:
    wall_ns, _ = _walls(steps, selection.steps)
    far = wall_ns > FAR_OUT * np.median(wall_ns) if len(wall_ns) else np.zeros(0, dtype=bool)
    if not far.any() or far.mean() > RARE:
        return selection
    evaluated = far & (sums.host[PHASES.index(Phase.OTHER.value)] > wall_ns / 2)
    found = {EVALUATION: selection.steps[evaluated], OUTLIER: selection.steps[far & ~evaluated]}
    which = {
        **selection.which,
        **{reason: numbers for reason, numbers in found.items() if len(numbers)},
    }
    return Selection(
        selection.steps[~far], {reason: len(numbers) for reason, numbers in which.items()}, which
    )


def _apart(steps: pa.Table, selection: Selection) -> Iterator[Apart]:
    index, wall = (
        steps["step"].to_numpy(),
        steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy(),
    )
    inside = np.isin(index, selection.steps)
    usual = float(wall[inside].mean()) if inside.any() else 0.0
    for reason, numbers in selection.which.items():
        rows = np.isin(index, numbers)
        yield Apart(reason, len(numbers), float(wall[rows].sum() - usual * rows.sum()) / len(index))
