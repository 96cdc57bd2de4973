"""A run, computed once: which steps count, where their time went, and on which clock.

Views take what they need from here, so that no two of them can differ. Each part is computed when
it is first asked for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from profkit.errors import UnreadableError
from profkit.frame.calls import Calls
from profkit.frame.columns import durations, split_ranks, step_places
from profkit.frame.compiling import compiled_steps
from profkit.frame.costs import (
    MOST_UNTIMED_SHARE,
    NO_DEVICE_TIMES,
    RunCosts,
    cost_of_sums,
    exclude_outliers,
)
from profkit.frame.device_clock import exposed_spans
from profkit.frame.device_times import (
    DeviceTimes,
    PhaseClock,
    clock_of,
    is_own,
    join_device_times,
    rows_of_ranks,
)
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exchange import (
    Exchange,
    Exposure,
    LateRank,
    expose,
    find_late_rank,
    split_exchange,
)
from profkit.frame.exposed import untimed_exchanges
from profkit.frame.gaps import UnknownPlace, name_places
from profkit.frame.lateness import RankWork, work_of
from profkit.frame.notices import is_log, ranks_of_model
from profkit.frame.own_cost import OwnCost, own_cost, span_price_ns, switched_cost, without
from profkit.frame.parts import count_rank_steps, sampled_one_in
from profkit.frame.phases import UNKNOWN, StepTimes
from profkit.frame.rank_part import KEPT, NOT_KEPT, RankPart, SumsByRank, part_of, read_part
from profkit.frame.rank_sums import SpanSums, add_sums, sum_spans
from profkit.frame.selection import Selection, marked_steps, steady_steps, warm_up_of, window_steps
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.trace.reader import Mapper
from profkit.trace.sampled import step_levels
from profkit.vocab import CAPTURED_STEP, CHANGES, PHASES

UNTIMED_EXCHANGE = (
    "the device's wait for the gradient exchange was not timed: it is part of forward or backward, "
    "and its share there is not known"
)

SHARED_ENDS = (
    "the framework shows only when the last gradient bucket of a backward is done: a rank counts "
    "as waiting until the last rank is ready for that bucket, also while earlier ones are sent; "
    "what backward hides, and the transfer of a bucket, are not known"
)


FEWEST_SAMPLED = 120
"""A sample has at least so many steps."""

MOST_KEPT = 64
"""Of more ranks, rows of which there is a `RankPart` are read again where they are needed."""


def frame_of(trace: Trace) -> RunFrame:
    """Return the frame of a run, which is made once."""
    frame: RunFrame = trace.derived.setdefault(RunFrame, RunFrame(trace))
    return frame


class RunFrame:
    """The steps of a run, the time of each in each phase, and on which clock it was taken.

    `selection` are the steps of its figures. If some ranks have device times, their phases are what
    views are about: `basis`, with the steps in which no time is missing.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._exposed: tuple[Ints, Exposure] | None = None

    def sample(self, most: int) -> None:
        """If a run has more steps of ranks than this, take figures from a sample of its steps.

        Call this before any other method. A long run whose steps were thinned is a sample already.
        """
        ranks = self.trace.ranks
        if len(ranks) <= MOST_KEPT or ranks[0].content("sums").rows:
            return
        count, level = ranks[0].content("steps").rows, 0
        while len(ranks) * count > most << level and count >= FEWEST_SAMPLED << (level + 1):
            level += 1
        for rank in ranks:
            rank.level = level

    @property
    def level(self) -> int:
        """The level of the steps in the sample; 0 if it has all of them."""
        return min((rank.level for rank in self.trace.ranks), default=0)

    @functools.cached_property
    def warm_up(self) -> int:
        return warm_up_of(self.trace, self.trace.steps)

    @functools.cached_property
    def windows(self) -> Ints:
        """The steps in which kernels were captured, or captures read."""
        return window_steps(self.trace.samples)

    @functools.cached_property
    def compiled(self) -> Ints:
        """The steps in which something was compiled."""
        return compiled_steps(self.trace.steps, self.trace.events)

    @functools.cached_property
    def selection(self) -> Selection:
        """The steps that figures are about; of a thinned run, a sample of them."""
        damaged = [rank for rank, part in self.parts.items() if part.lost_spans]
        found = steady_steps(self.trace, self.warm_up, self.windows, self.compiled, damaged)
        return found.of_level(self.level)

    @property
    def lacks_spans(self) -> bool:
        """True if a rank's spans are all lost, by damage to its file: no phase is known."""
        return any(part.lost_spans and not part.spans for part in self.parts.values())

    @functools.cached_property
    def numbers(self) -> Ints:
        """The numbers of all steps, ascending; `by_rank` and `walls_ns` have a column each."""
        return np.unique(self.trace.steps["step"].to_numpy()).astype(np.int64)

    @functools.cached_property
    def parts(self) -> Mapping[int, RankPart]:
        """What figures need of each rank's spans; of many ranks, the spans are not kept."""
        found = {}
        for rank in self.trace.ranks:
            found[rank.rank] = part_of(rank)
            if len(self.trace.ranks) > MOST_KEPT and not found[rank.rank].damaged:
                for table in NOT_KEPT:
                    rank.contents.pop(table, None)
        return found

    def read_with(self, each: Mapper, *, whole: bool, there: bool) -> None:
        """Read the ranks and compute `parts` with `each`, `there` on other machines.

        The run must have the same path on them. Unless the ranks are read as a whole, spans and
        collectives are read here once more, if a view needs them.
        """
        if self.trace.is_part:  # its ranks are cut out of tables that are read already
            return
        folders, numbers, sizes = [], [], []
        for rank in self.trace.ranks:
            folders.append(str(rank.folder.absolute()))
            numbers.append(rank.rank)
            seen = (*KEPT, *NOT_KEPT) if there else ()
            sizes.append({table: rank.size(table) for table in seen})
        tables: list[tuple[str, ...]] = [(*KEPT, *NOT_KEPT) if whole else KEPT] * len(numbers)
        tables[:1] = [(*KEPT, *NOT_KEPT)]  # the first rank's calls may stand for those of all
        found, parts = (
            each(read_part, folders, numbers, sizes, tables, [self.level] * len(numbers)),
            {},
        )
        for rank, (contents, part) in zip(self.trace.ranks, found, strict=True):
            rank.contents.update(contents)
            parts[rank.rank] = part
        self.parts = parts

    @functools.cached_property
    def by_rank(self) -> Mapping[int, SpanSums]:
        """Each rank's time by phase and step."""
        return SumsByRank(self.parts, self.numbers)

    @functools.cached_property
    def all_sums(self) -> SpanSums:
        """The same of all ranks together."""
        if not self.parts:  # no rank has written anything yet
            return sum_spans(self.trace.spans, self.numbers)
        return add_sums(self.by_rank.values())

    @functools.cached_property
    def collectives(self) -> pa.Table | Calls:
        """The collectives: as calls, if all ranks made the same ones."""
        trace = self.trace
        if len(trace.ranks) > 1:
            own = {rank: part.calls for rank, part in self.parts.items()}
            found = Calls.join(trace.ranks[0].table("collectives"), own)
            if found is not None:
                return found
        return trace.collectives

    def unknown_places(self, used: Ints) -> tuple[UnknownPlace, ...]:
        """Return the time between neighbouring phases of the used steps, longest first."""
        sums: dict[int, float] = {}
        for part in self.parts.values():
            for pair, gap_ns in part.gaps_in(used).items():
                sums[pair] = sums.get(pair, 0.0) + gap_ns
        ranks = int(np.sum([own[self.places(used)].any() for own in self.walls_ns.values()]))
        return name_places(sums, ranks * len(used))

    def places(self, used: Ints) -> Ints:
        """Return the columns of these steps."""
        return np.flatnonzero(np.isin(self.numbers, used))

    @functools.cached_property
    def samples(self) -> Ints:
        """The samples of each step, of all ranks together."""
        counts = self.trace.steps["sample_count"].to_numpy()
        place = step_places(self.trace.steps, self.numbers)
        return np.bincount(place, weights=counts, minlength=len(self.numbers)).astype(np.int64)

    @functools.cached_property
    def walls_ns(self) -> Mapping[int, Ints]:
        """Each rank's wall time by step; 0 if it has no such step."""
        found = {}
        for rank, rows in split_ranks(self.trace.steps).items():
            wall_ns = np.zeros(len(self.numbers), dtype=np.int64)
            np.add.at(wall_ns, step_places(rows, self.numbers), durations(rows))
            found[rank] = wall_ns
        return found

    @property
    def phases(self) -> Ints:
        """The time by phase and step, over all ranks, as devices noticed it."""
        return self.all_sums.exposed

    def times(self, used: Ints) -> StepTimes:
        """Return wall time, time by phase and samples of some steps, as means over the ranks."""
        places, ranks = self.places(used), max(1, len(self.walls_ns))
        wall_ns = np.sum(list(self.walls_ns.values()), axis=0)[places] / ranks
        phases = self.phases[:, places] / ranks
        seen = np.flatnonzero(phases.any(axis=1))
        parts = np.concatenate([phases[seen], [wall_ns - phases.sum(axis=0)]])
        names = (*(PHASES[row] for row in seen), UNKNOWN)
        return StepTimes(wall_ns, self.samples[places].astype(np.float64), names, parts)

    def work(self, used: Ints) -> RankWork:
        """Return the own work of each rank of the basis in some steps."""
        places = self.places(used)
        return work_of(
            (rank, self.by_rank[rank].exposed[:, places], self.walls_ns[rank][places])
            for rank in self.basis.ranks
        )

    def by_phase(self, used: Ints) -> dict[int, dict[str, Floats]]:
        """Return the time of each rank by phase in some steps, in this order, and outside all."""
        places, found = np.searchsorted(self.numbers, used), {}
        for rank, wall_ns in self.walls_ns.items():
            own = self.by_rank[rank].exposed[:, places].astype(np.float64)
            found[rank] = {PHASES[row]: own[row] for row in np.flatnonzero(own.any(axis=1))}
            found[rank][UNKNOWN] = wall_ns[places] - own.sum(axis=0)
        return found

    def means_of(self, rank: int, used: Ints) -> dict[str, float]:
        """Return a rank's mean time per step in each phase that it had, and outside all.

        It is empty for a rank without steps, or that phases are not about.
        """
        places = self.places(used)
        if not len(places) or rank not in self.basis.ranks:
            return {}
        by_phase = self.by_rank[rank].exposed[:, places]
        seen = np.flatnonzero(by_phase.any(axis=1))
        found = {PHASES[row]: float(by_phase[row].mean()) for row in seen}
        return {
            **found,
            UNKNOWN: float((self.walls_ns[rank][places] - by_phase.sum(axis=0)).mean()),
        }

    @functools.cached_property
    def costs(self) -> RunCosts:
        """The costs of the run; raises `UnreadableError` if none of its steps can be read.

        If some ranks have device times, they are theirs, of steps in which no time is missing.
        """
        trace, steady = self.trace, self.selection
        if not trace.steps.num_rows:
            raise UnreadableError(f"{safe_text(str(trace.path))}: holds no steps to compare")
        ranks = self.timed_ranks
        places = self.places(steady.steps)
        sums = self.all_sums
        if len(ranks) and len(ranks) < len(self.by_rank):
            sums = add_sums(self.by_rank[rank] for rank in ranks.tolist())
        sums = sums.take(places)
        steps = rows_of_ranks(trace.steps, ranks)
        collectives = self.collectives_of(ranks)
        selection = steady
        if is_own(trace):  # a phase of an imported trace without device times launched nothing
            missing = sums.untimed > 0
            untimed = untimed_exchanges(collectives, sums.timed_exchange, steady.steps)
            if sums.on_device and untimed.sum() <= MOST_UNTIMED_SHARE * len(untimed):
                missing |= untimed
            selection = steady.without(NO_DEVICE_TIMES, missing)
            sums = sums.take(np.flatnonzero(~missing))
        if not is_log(trace):  # a log's figures are means over all its steps, as the report's are
            selection = exclude_outliers(steps, sums, selection)
        sums = sums.take(np.flatnonzero(np.isin(sums.steps, selection.steps)))
        price_ns = span_price_ns(trace.samples)
        exposure = self.expose(collectives, sums.windows, selection.steps)
        costs = cost_of_sums(steps, sums, exposure, selection, price_ns, trace.sums)
        outside = without(trace.steps, np.union1d(self.windows, self.compiled))
        clock = clock_of(trace, on_device=sums.on_device)
        timed, with_calls = sums.timed_exchange, is_own(trace)
        untimed = untimed_exchanges(collectives, timed, sums.steps, with_calls=with_calls)
        if clock is not PhaseClock.HOST and untimed.any():
            costs = costs.without_exchange()
        if (sharing := ranks_of_model(trace)) > 1:
            costs = costs.of_ranks(sharing)
        return dataclasses.replace(
            costs,
            switched=switched_cost(outside, self.warm_up),
            clock=clock,
            unclocked=tuple(np.setdiff1d(trace.steps["rank"], steps["rank"]).tolist()),
            one_in=max(sampled_one_in(trace.sums), 2**self.level),
            of_lines=is_log(trace) and trace.manifest.config.get("steps_per_line") != 1,
        )

    def expose(self, collectives: pa.Table | Calls, windows: pa.Table, used: Ints) -> Exposure:
        """Return how the exchange of some steps was exposed; of the same ones, it is kept."""
        is_last = self._exposed is not None and np.array_equal(self._exposed[0], used)
        if self._exposed is None or not is_last:
            self._exposed = used, expose(collectives, windows, used)
        return self._exposed[1]

    def collectives_of(self, ranks: Ints) -> pa.Table | Calls:
        if not len(ranks) or len(ranks) == len(self.parts):
            return self.collectives
        return rows_of_ranks(self.trace.collectives, ranks)

    @functools.cached_property
    def timed_ranks(self) -> Ints:
        """The ranks with device times in the selected steps."""
        places = self.places(self.selection.steps)
        timed = [rank for rank, each in self.by_rank.items() if each.timed[places].any()]
        return np.array(sorted(timed), dtype=np.int64)

    @functools.cached_property
    def basis(self) -> PhaseBasis:
        return _basis_of(self)

    @functools.cached_property
    def device_times(self) -> DeviceTimes | None:
        counts = {rank: part.device for rank, part in self.parts.items()}
        return join_device_times(self.trace, counts)

    @functools.cached_property
    def own_cost(self) -> OwnCost:
        """profkit's cost, without the steps that something else made slow."""
        trace = self.trace
        slow = np.union1d(self.windows, self.compiled)
        slow = np.union1d(slow, marked_steps(trace.samples, CHANGES, CAPTURED_STEP))
        in_all = count_rank_steps(trace.steps, trace.sums)
        read = np.count_nonzero(step_levels(self.numbers) >= self.level) / max(1, len(self.numbers))
        spans = sum(part.spans for part in self.parts.values())
        marks = sum(part.marks for part in self.parts.values())
        if self.level and read:
            spans, marks = round(spans / read), round(marks / read)
        return own_cost(
            trace.steps,
            trace.samples,
            self.warm_up,
            slow,
            spans=spans,
            marks=marks,
            in_all=in_all,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class PhaseBasis:
    """The ranks, steps and spans that phases are about.

    If there are device times, the spans are on the device's clock, and `costs` are the ledger's:
    all screens show these.
    """

    frame: RunFrame
    steps: pa.Table
    windows: pa.Table
    """The spans of the exposed exchange."""
    used: Ints
    clock: PhaseClock
    exchange_timed: bool
    costs: RunCosts | None = None

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have steps and, if any has, device times."""
        return tuple(np.unique(self.steps["rank"].to_numpy()).tolist())

    @functools.cached_property
    def spans(self) -> pa.Table:
        spans = self.frame.trace.spans
        timed = self.frame.timed_ranks
        return exposed_spans(rows_of_ranks(spans, timed)) if len(timed) else spans

    @functools.cached_property
    def collectives(self) -> pa.Table:
        return rows_of_ranks(self.frame.trace.collectives, self.frame.timed_ranks)

    @functools.cached_property
    def calls(self) -> pa.Table | Calls:
        """The collectives, as calls if all ranks made the same ones."""
        return self.frame.collectives_of(self.frame.timed_ranks)

    @functools.cached_property
    def step_ns(self) -> float:
        """The mean wall time of a used step."""
        places = self.frame.places(self.used)
        return float(np.mean([self.frame.walls_ns[rank][places] for rank in self.ranks]))

    @property
    def why_no_exchange(self) -> str:
        """The reason why nothing is known of the exposed exchange; empty if there is none."""
        if not self.exchange_timed:
            return "the device's wait for the exchange was not timed"
        if self.costs is not None and self.costs.unclocked:
            return "some ranks have no device times"
        return ""

    @functools.cached_property
    def exchange(self) -> Exchange | None:
        """The gradient exchange, or `None` if its exposed part was not timed everywhere."""
        if self.why_no_exchange:
            return None
        return split_exchange(self.frame.expose(self.calls, self.windows, self.used))

    @functools.cached_property
    def work(self) -> RankWork:
        """The own work of each rank in the used steps."""
        return self.frame.work(self.used)

    @functools.cached_property
    def late_rank(self) -> LateRank | None:
        """The rank that is late again and again in the exchange."""
        if self.exchange is None:
            return None
        return find_late_rank(self.exchange, self.work, self.step_ns)


def _basis_of(frame: RunFrame) -> PhaseBasis:
    trace, ranks = frame.trace, frame.timed_ranks
    steps, windows = trace.steps, frame.all_sums.windows
    if len(ranks):
        costs = frame.costs
        return PhaseBasis(
            frame,
            rows_of_ranks(steps, ranks),
            rows_of_ranks(windows, ranks),
            costs.selection.steps,
            costs.clock,
            costs.exchange_timed,
            costs,
        )
    used = frame.selection.steps
    clock, exchange_timed = clock_of(trace, on_device=False), True
    if clock is PhaseClock.LAUNCH:
        exchange_timed = not untimed_exchanges(frame.collectives, windows.slice(0, 0), used).any()
    return PhaseBasis(frame, steps, windows, used, clock, exchange_timed)


def read_device_times(run: Path) -> DeviceTimes | None:
    """Count the device times of a run on disk, as far as it can be read."""
    try:
        return frame_of(Trace.open(run)).device_times
    except UnreadableError:
        return None
