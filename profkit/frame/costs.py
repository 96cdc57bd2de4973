"""Costs of each step of one run, in whole nanoseconds over all ranks, for the ledger.

Everything stays an integer sum until two runs are compared, so that parts add up to the wall clock
exactly. `unknown` is the wall time minus all other parts; it may be negative, and is never clamped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.apart import Apart, find_apart
from profkit.frame.columns import durations, step_places
from profkit.frame.device_times import (
    PhaseClock,
)
from profkit.frame.estimate import FEWEST_STEPS, Estimate, Floats, Ints
from profkit.frame.exchange import Exposure
from profkit.frame.exposed import share_data, split_allreduce
from profkit.frame.phases import UNKNOWN
from profkit.frame.rank_sums import SpanSums
from profkit.frame.selection import Selection
from profkit.vocab import PHASES, Phase

DATA = Phase.DATA.value
REST = "rest"
OWN = "profkit itself"
OUTLIER = "outlier"
NO_DEVICE_TIMES = "no device times"
EVALUATION = "evaluation or checkpoint"
HIDDEN_EXCHANGE = "allreduce under backward"

OUTLIER_FACTOR = 5.0
"""A step is an outlier if it takes more than this many times the median."""

MOST_UNTIMED_SHARE = 0.5
"""If the exchange is not timed in more than this share of the steps, it has no figure."""

MOST_OUTLIERS_SHARE = 0.02
"""If more than this share of the steps is far out, that is how the job runs: none is excluded."""

_COMPUTES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)


@dataclass(frozen=True)
class RunCosts:
    """The used steps of one run, each a sum over the ranks.

    `parts` are exclusive and add up to `wall_ns`; `inside` splits some of them into finer ones,
    which add up to them. `beside` overlapped with the step's own work and cost nothing.
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
    began_ns: tuple[int, ...] = ()
    """The time at which each of several runs began; empty if that is not known."""
    of_lines: bool = False
    """True if a log has several steps per line: equal neighbours are one figure."""
    switched: Estimate | None = None
    """How much longer a step took than control steps, in ns; null if the run has none.

    The difference is somewhere in all parts.
    """
    clock: PhaseClock = PhaseClock.HOST
    host: Mapping[str, Ints] = field(default_factory=dict)
    """With device times, the parts as the host saw them: the time to launch the work, and waits."""
    exchange_timed: bool = True
    """False if only the device sees the exchange, and was not asked: other phases contain it."""
    unclocked: tuple[int, ...] = ()
    """The ranks without device times, which are not in here."""
    one_in: int = 1
    """These are a sample of the run's steps: one in so many."""

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

    @property
    def not_beside(self) -> set[str]:
        """Parts that overlap with the step's work for a time that nobody knows."""
        known = Phase.ALLREDUCE.value not in self.parts or HIDDEN_EXCHANGE in self.beside
        return set() if known else {HIDDEN_EXCHANGE}

    def per_step(self) -> RunCosts:
        """Count each step of a rank as one sample, for runs that do not report samples."""
        samples = np.full(self.steps, self.ranks, dtype=np.int64)
        return dataclasses.replace(self, samples=samples)

    def without_phases(self, kept: Collection[str]) -> RunCosts:
        """Keep only these parts and a rest, as a training log supports them."""
        names = {*kept} if self.knows_phases else {*kept, Phase.OTHER.value}  # a log's evaluations
        parts = {name: ns for name, ns in self.parts.items() if name in names}
        inside = {name: parted for name, parted in self.inside.items() if name in kept}
        rest = self.wall_ns - sum(parts.values())
        return dataclasses.replace(self, parts={**parts, REST: rest}, inside=inside)

    def without_own(self) -> RunCosts:
        """Add profkit's own time to `unknown`, where it is in a run that does not measure it."""
        if OWN not in self.parts:
            return self
        parts = dict(self.parts)
        own, unknown = parts.pop(OWN), parts.pop(UNKNOWN)
        return dataclasses.replace(self, parts={**parts, UNKNOWN: unknown + own})

    def of_ranks(self, count: int) -> RunCosts:
        """Return the costs of so many ranks that take what the only one in the run takes."""

        def times(parts: Mapping[str, Ints]) -> Mapping[str, Ints]:
            return {name: count * ns for name, ns in parts.items()}

        inside = {name: times(parts) for name, parts in self.inside.items()}
        return dataclasses.replace(
            self,
            wall_ns=count * self.wall_ns,
            ranks=count,
            parts=times(self.parts),
            inside=inside,
            beside=times(self.beside),
        )

    def of_wall_alone(self) -> RunCosts:
        """Keep nothing but the wall clock."""
        return dataclasses.replace(self, parts={REST: self.wall_ns}, inside={}, beside={})

    def without_exchange(self) -> RunCosts:
        """Add the exchange to `backward`, where it is in a run that does not time it."""
        exchange, backward = Phase.ALLREDUCE.value, Phase.BACKWARD.value
        parts, host, inside = dict(self.parts), dict(self.host), dict(self.inside)
        for each in (parts, host):
            if exchange in each:
                before = each.get(backward, np.zeros_like(self.wall_ns))
                each[backward] = before + each.pop(exchange)
        inside.pop(exchange, None)
        beside = {name: ns for name, ns in self.beside.items() if name != HIDDEN_EXCHANGE}
        return dataclasses.replace(
            self, parts=parts, host=host, inside=inside, beside=beside, exchange_timed=False
        )


def exclude_outliers(steps: pa.Table, sums: SpanSums, selection: Selection) -> Selection:
    """Exclude the few steps that are far longer than all others, by what they spent it on."""
    wall_ns, _ = _walls(steps, selection.steps)
    if not len(wall_ns):
        return selection
    far = wall_ns > OUTLIER_FACTOR * np.median(wall_ns)
    if not far.any() or far.mean() > MOST_OUTLIERS_SHARE:
        return selection
    evaluated = far & (sums.host[PHASES.index(Phase.OTHER.value)] > wall_ns / 2)
    usual = selection.without(EVALUATION, evaluated)
    return usual.without(OUTLIER, far[~evaluated])


def cost_of_sums(
    steps: pa.Table,
    sums: SpanSums,
    exposure: Exposure,
    selection: Selection,
    price_ns: float | None = None,
    long_sums: pa.Table | None = None,
) -> RunCosts:
    """Return the costs of the selected steps, from the sums of their spans.

    `price_ns` is what timing one phase cost the loop, `long_sums` the sums of a thinned run.
    """
    wall_ns, samples = _walls(steps, selection.steps)
    parts = _by_part(sums, sums.exposed)
    inside: dict[str, Mapping[str, Ints]] = {}
    beside: dict[str, Ints] = {}
    data = PHASES.index(DATA)
    hidden_ns = sums.host[data] - sums.exposed[data]
    if sums.on_device and hidden_ns.any():
        beside["data under the device's work"] = hidden_ns
    pieces = share_data(sums.pieces, sums.waits)
    if DATA in parts and pieces:
        inside[DATA] = {**pieces, "waiting otherwise": parts[DATA] - sum(pieces.values())}
    exchange = split_allreduce(exposure)
    if exchange:
        if exchange.hidden_ns is not None:
            beside[HIDDEN_EXCHANGE] = exchange.hidden_ns
        exposed_ns = parts.get(Phase.ALLREDUCE.value)
        if exposed_ns is not None:
            otherwise = exposed_ns - sum(exchange.parts.values())
            inside[Phase.ALLREDUCE.value] = {**exchange.parts, "otherwise": otherwise}
    if price_ns is not None and not sums.on_device:
        parts[OWN] = _whole(np.asarray(price_ns * sums.outer, dtype=np.float64))
    parts[UNKNOWN] = wall_ns - sum(parts.values())
    ranks = max(1, len(pc.unique(steps["rank"])))
    apart = find_apart(steps, selection, long_sums)
    costs = RunCosts(wall_ns, samples, ranks, parts, inside, beside, selection, apart)
    if not sums.on_device:
        return costs
    host = _by_part(sums, sums.host)
    host[UNKNOWN] = wall_ns - sum(host.values())
    return dataclasses.replace(costs, clock=PhaseClock.DEVICE, host=host)


def _by_part(sums: SpanSums, by_phase: Ints) -> dict[str, Ints]:
    """Return the sums of each phase that took any time."""
    return dict(sums.by_phase(by_phase))


def _walls(steps: pa.Table, used: Ints) -> tuple[Ints, Ints]:
    """Return wall time and samples of each used step, as sums over the ranks."""
    place = step_places(steps, used)
    kept = place >= 0
    wall_ns = np.bincount(place[kept], weights=durations(steps)[kept], minlength=len(used))
    counts = steps["sample_count"].to_numpy()[kept]
    samples = np.bincount(place[kept], weights=counts, minlength=len(used))
    return wall_ns.astype(np.int64), samples.astype(np.int64)


def _whole(values: Floats) -> Ints:
    return np.asarray(np.rint(values), dtype=np.int64)
