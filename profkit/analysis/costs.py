"""Costs of each step of one run, in whole nanoseconds over all ranks, for the ledger.

Everything stays an integer sum until two runs are compared, so that parts add up to the wall clock
exactly. `unknown` is the wall time minus all other parts; it may be negative, and is never clamped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.columns import durations
from profkit.analysis.estimate import FEWEST_STEPS, Estimate, Floats, Ints
from profkit.analysis.exposed import share_input, split_allreduce
from profkit.analysis.kernels.windows import window_steps
from profkit.analysis.notices import is_log
from profkit.analysis.own_cost import span_price_ns, switched_cost, without
from profkit.analysis.phases import UNKNOWN, step_times
from profkit.analysis.rank_sums import SpanSums, sum_spans
from profkit.analysis.selection import Selection, steady_steps, warm_up_of
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

OUTLIER_FACTOR = 5.0
"""A step is an outlier if it takes more than this many times the median."""

MOST_OUTLIERS_SHARE = 0.02
"""If more than this share of the steps is far out, that is how the job runs: none is excluded."""

_COMPUTES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)


@dataclass(frozen=True)
class Apart:
    """Steps that are excluded from the averages for one reason.

    `excess_ns` is how much longer they took than as many of the others, per step of the run.
    """

    reason: str
    steps: int
    excess_ns: float


@dataclass(frozen=True)
class RunCosts:
    """The used steps of one run, each a sum over the ranks.

    `parts` are exclusive and add up to `wall_ns`; `inside` splits some of them into finer ones,
    which add up to them. `beside` is time that overlapped with the step's own work and cost
    nothing.
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
    """The number of steps of each run, if these are the costs of several."""
    switched: Estimate | None = None
    """How much longer a step took than control steps, in ns; null if the run has none.

    The difference is somewhere in all parts.
    """

    @property
    def steps(self) -> int:
        return len(self.wall_ns)

    @property
    def steps_needed(self) -> int:
        """The number of further steps that would give intervals."""
        return max(0, FEWEST_STEPS - self.steps)

    @property
    def samples_known(self) -> bool:
        """True unless the run's used steps say nothing about what they trained on."""
        return bool(self.samples.any()) or not self.steps

    @property
    def knows_phases(self) -> bool:
        return any(name in self.parts for name in _COMPUTES)

    def per_step(self) -> RunCosts:
        """Count each step of a rank as one sample, for runs that do not report samples."""
        samples = np.full(self.steps, self.ranks, dtype=np.int64)
        return dataclasses.replace(self, samples=samples)

    def without_phases(self) -> RunCosts:
        """Keep only input, if it is known, and a rest, as a training log supports them."""
        if INPUT not in self.parts:
            return self.of_wall_alone()
        parts = {INPUT: self.parts[INPUT]}
        if Phase.OTHER.value in self.parts and not self.knows_phases:  # a log's evaluations
            parts[Phase.OTHER.value] = self.parts[Phase.OTHER.value]
        rest = self.wall_ns - sum(parts.values())
        inside = {}
        if INPUT in self.inside:
            inside[INPUT] = self.inside[INPUT]
        return dataclasses.replace(self, parts={**parts, REST: rest}, inside=inside)

    def without_own(self) -> RunCosts:
        """Add profkit's own time to `unknown`, where it is in a run that does not measure it."""
        if OWN not in self.parts:
            return self
        parts = dict(self.parts)
        own, unknown = parts.pop(OWN), parts.pop(UNKNOWN)
        return dataclasses.replace(self, parts={**parts, UNKNOWN: unknown + own})

    def of_wall_alone(self) -> RunCosts:
        """Keep nothing but the wall clock."""
        return dataclasses.replace(self, parts={REST: self.wall_ns}, inside={})


def run_costs(trace: Trace, sums: SpanSums | None = None) -> RunCosts:
    """Return the costs of a run; raise `UnreadableError` if none of its steps can be read.

    `sums` are those of the steady steps' spans, if they were already computed rank by rank.
    """
    steps = trace.steps
    if not steps.num_rows:
        raise UnreadableError(f"{safe_text(str(trace.path))}: holds no steps to compare")
    steady = steady_steps(trace)
    if sums is None:
        sums = sum_spans(trace.spans, steady.steps)
    selection = steady
    if not is_log(
        trace
    ):  # a log's figures are means over all of its steps, and so are the report's
        selection = exclude_outliers(steps, sums, steady)
    sums = sums.take(np.isin(steady.steps, selection.steps))
    price_ns = span_price_ns(trace.samples)
    costs = cost_of_sums(steps, sums, trace.collectives, selection, price_ns)
    outside = without(steps, window_steps(trace.samples))
    return dataclasses.replace(costs, switched=switched_cost(outside, warm_up_of(trace, steps)))


def exclude_outliers(steps: pa.Table, sums: SpanSums, selection: Selection) -> Selection:
    """Exclude the few steps that are far longer than all others, by what they spent it on."""
    wall_ns, _ = _walls(steps, selection.steps)
    if not len(wall_ns):
        return selection
    far = wall_ns > OUTLIER_FACTOR * np.median(wall_ns)
    if not far.any() or far.mean() > MOST_OUTLIERS_SHARE:
        return selection
    evaluated = far & (sums.host[PHASES.index(Phase.OTHER.value)] > wall_ns / 2)
    which = dict(selection.which)
    for reason, applies in ((EVALUATION, evaluated), (OUTLIER, far & ~evaluated)):
        if applies.any():
            which[reason] = selection.steps[applies]
    left_out = {reason: len(numbers) for reason, numbers in which.items()}
    return Selection(selection.steps[~far], left_out, which)


def cost_of_sums(
    steps: pa.Table,
    sums: SpanSums,
    collectives: pa.Table,
    selection: Selection,
    price_ns: float | None = None,
) -> RunCosts:
    """Return the costs of the selected steps, from the sums of their spans.

    `price_ns` is what timing one phase cost the loop, if the run measured it.
    """
    wall_ns, samples = _walls(steps, selection.steps)
    parts: dict[str, Ints] = {}
    for name, ns in sums.by_phase(sums.exposed).items():
        parts[INPUT if name == Phase.DATA.value else name] = ns
    inside: dict[str, Mapping[str, Ints]] = {}
    beside: dict[str, Ints] = {}
    data = PHASES.index(Phase.DATA.value)
    hidden_ns = sums.host[data] - sums.exposed[data]
    if sums.on_device and hidden_ns.any():
        beside["input under the device's work"] = hidden_ns
    pieces = share_input(sums.pieces, sums.waits)
    if INPUT in parts and pieces:
        inside[INPUT] = {**pieces, "waiting otherwise": parts[INPUT] - sum(pieces.values())}
    exchange = split_allreduce(collectives, sums.windows, selection.steps)
    if exchange:
        beside["allreduce under backward"] = exchange.hidden_ns
        exposed_ns = parts.get(Phase.ALLREDUCE.value)
        if exposed_ns is not None:
            otherwise = exposed_ns - sum(exchange.parts.values())
            inside[Phase.ALLREDUCE.value] = {**exchange.parts, "otherwise": otherwise}
    if price_ns is not None and not sums.on_device:
        parts[OWN] = _whole(np.asarray(price_ns * sums.outer, dtype=np.float64))
    parts[UNKNOWN] = wall_ns - sum(parts.values())
    ranks = max(1, len(pc.unique(steps["rank"])))
    apart = _apart(steps, selection)
    return RunCosts(wall_ns, samples, ranks, parts, inside, beside, selection, apart)


def _walls(steps: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """Return wall time and samples of each used step, as sums over the ranks.

    `step_times` returns means over the ranks; multiplied back and rounded they are whole sums.
    """
    times = step_times(steps, open_schema("spans").empty_table(), used)
    ranks = max(1, len(pc.unique(steps["rank"])))
    return _whole(times.wall_ns * ranks), _whole(times.samples)


def _whole(values: Floats) -> Ints:
    return np.asarray(np.rint(values), dtype=np.int64)


def _apart(steps: pa.Table, selection: Selection) -> tuple[Apart, ...]:
    """Return the excluded steps by reason, with what they cost."""
    index, wall_ns = steps["step"].to_numpy(), durations(steps)
    inside = np.isin(index, selection.steps)
    usual = float(wall_ns[inside].mean()) if inside.any() else 0.0
    found = []
    for reason, numbers in selection.which.items():
        rows = np.isin(index, numbers)
        excess_ns = float(wall_ns[rows].sum() - usual * rows.sum()) / len(index)
        found.append(Apart(reason, len(numbers), excess_ns))
    return tuple(found)
