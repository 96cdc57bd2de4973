"""The figures of a long run whose older steps are sums: exact over all of its steps.

Each rank has sums of its own parts, and steps in full before and after them. Its exact figures are
over both. Figures of single steps are those of a sample of blocks of steps, which `steady_steps`
takes with the same chance everywhere in the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.lengths import ERROR, count_lengths, find_quantile, read_lengths
from profkit.analysis.phase_shares import PhaseShare
from profkit.frame.columns import durations, rows_of_rank
from profkit.frame.compiling import compiled_steps
from profkit.frame.estimate import Estimate, Floats, Ints, estimate_ratios
from profkit.frame.parts import in_parts, sampled_one_in
from profkit.frame.phases import UNKNOWN, step_times
from profkit.frame.selection import (
    COMPILING,
    REASONS,
    Selection,
    mostly_compiled,
    select_steps,
    warm_up_of,
    window_steps,
    without_captured,
)
from profkit.trace import Trace
from profkit.vocab import PHASES, USED

QUANTILES = (0.5, 0.95, 0.99)
_MOST_BLOCKS = 4_000


@dataclass(frozen=True)
class Thinned:
    """The steps that a long run kept, and the exact figures over all of them.

    Numbers of steps are those of the rank that has most.
    """

    steps: int
    used: int
    left_out: Mapping[str, int]
    in_full: int
    """Steps whose own rows were kept."""
    one_in: int
    """Of the steps that figures of single steps are about, one in so many was kept."""
    throughput: Estimate
    step_ns: Estimate
    phases: tuple[PhaseShare, ...]
    quantiles: Mapping[float, float]
    """The step time that a share of the used steps of all ranks do not exceed, to within 1 %."""
    error: float = ERROR


@dataclass
class _RankRows:
    """A rank's used steps and sums, one row each: where they end, and what they took."""

    ends: Ints
    values: Floats
    """By (quantity, row): steps, samples, wall time, and the time of each phase."""
    steps: int
    left_out: Counter[str]
    lengths: Counter[int]


def find_thinned(trace: Trace) -> Thinned | None:
    """Return the exact figures of a thinned run; `None` if all of its steps were kept."""
    sums = trace.sums
    if not sums.num_rows:
        return None
    ranks = []
    for rank in trace.ranks:
        rows = _rank_rows(trace, rank.rank)
        if len(rows.ends):
            ranks.append(rows)
    if not ranks:
        return None
    most = max(ranks, key=lambda rows: rows.steps)
    lengths: Counter[int] = Counter()
    for rows in ranks:
        lengths.update(rows.lengths)
    left_out = {}
    for reason in REASONS:
        if most.left_out[reason]:
            left_out[reason] = most.left_out[reason]
    throughput, step_ns, phases = _estimate(_in_blocks(sums, ranks), len(ranks))
    return Thinned(
        steps=most.steps,
        used=int(most.values[0].sum()),
        left_out=left_out,
        in_full=len(pc.unique(trace.steps["step"])),
        one_in=sampled_one_in(sums),
        throughput=throughput,
        step_ns=step_ns,
        phases=phases,
        quantiles={share: find_quantile(lengths, share) for share in QUANTILES},
    )


def _rank_rows(trace: Trace, rank: int) -> _RankRows:
    sums, steps = rows_of_rank(trace.sums, rank), rows_of_rank(trace.steps, rank)
    is_whole = sums["phase"].is_null()
    parts = sums.filter(is_whole)
    own = steps.filter(pa.array(~in_parts(parts, steps)))
    used = _own_steps(trace, own, parts)
    left_out = Counter(dict(used.left_out))
    kinds = {USED}
    by_kind: Counter[str] = Counter()
    for kind, count in zip(parts["kind"].to_pylist(), parts["steps"].to_pylist(), strict=True):
        by_kind[kind] += count
    if mostly_compiled(trace, np.empty(0, dtype=bool)):
        kinds.add(COMPILING)
    for kind, count in by_kind.items():
        if kind not in kinds:
            left_out[kind] += count
    times = step_times(own, rows_of_rank(trace.spans, rank), used.steps)
    full = np.zeros((3 + len(PHASES), len(used.steps)))
    full[0], full[1], full[2] = 1, times.samples, times.wall_ns
    for name, part in zip(times.names, times.parts, strict=True):
        if name != UNKNOWN:
            full[3 + PHASES.index(name)] = part
    is_used = pc.is_in(sums["kind"], pa.array(sorted(kinds)))
    ends, values = _sum_rows(sums.filter(is_used))
    if rank not in _ranks_that_count(trace):
        values[1] = 0
    texts = parts.filter(pc.is_in(parts["kind"], pa.array(sorted(kinds))))["lengths"].to_pylist()
    inside = own.filter(pc.is_in(own["step"], pa.array(used.steps.tolist(), pa.int64())))
    return _RankRows(
        np.concatenate([used.steps, ends]),
        np.concatenate([full, values], axis=1),
        own.num_rows + sum(by_kind.values()),
        left_out,
        read_lengths(texts) + count_lengths(durations(inside)),
    )


def _own_steps(trace: Trace, own: pa.Table, parts: pa.Table) -> Selection:
    """Return the steps in full that figures are about, of one rank outside its parts."""
    last = parts.sort_by("last_step").slice(max(0, parts.num_rows - 1))
    steps, end = own, last["last_step"].to_pylist()
    if end and own.num_rows:  # the step before the last ones shows if an epoch starts with them
        row = own.slice(0, 1)
        for name, source in (("step", "last_step"), ("epoch", "epoch")):
            place = own.schema.get_field_index(name)
            row = row.set_column(place, own.schema.field(name), last[source])
        steps = pa.concat_tables([own, row])
    warm_up, windows = warm_up_of(trace, trace.steps), window_steps(trace.samples)
    found = select_steps(steps, warm_up=warm_up, windows=windows)
    which = {reason: np.setdiff1d(numbers, end) for reason, numbers in found.which.items()}
    left_out = {reason: len(numbers) for reason, numbers in which.items() if len(numbers)}
    found = Selection(np.setdiff1d(found.steps, end), left_out, which)
    found = without_captured(found, trace.samples)
    compiled = np.isin(found.steps, compiled_steps(trace.steps, trace.events))
    return found if mostly_compiled(trace, compiled) else found.without(COMPILING, compiled)


def _ranks_that_count(trace: Trace) -> set[int]:
    """Return the ranks whose sums count their samples: of those that share them, one has most."""
    numbers = [rank.rank for rank in trace.ranks]
    sharing = trace.sharing
    if sharing.why:
        return set()
    totals = trace.sums.group_by("rank").aggregate([("sample_count", "sum")])
    samples = dict(zip(*(totals[name].to_pylist() for name in totals.column_names), strict=True))
    most: dict[int, int] = {}
    for rank in numbers:
        group = sharing.groups.get(rank, -1 - rank)
        known = most.setdefault(group, rank)
        if (samples.get(rank) or 0) > (samples.get(known) or 0):
            most[group] = rank
    return set(most.values())


def _sum_rows(sums: pa.Table) -> tuple[Ints, Floats]:
    """Return the last step of each part, and its sums by (quantity, part)."""
    ends, place = np.unique(sums["last_step"].to_numpy(), return_inverse=True)
    values = np.zeros((3 + len(PHASES), len(ends)))
    columns = (sums[name].to_pylist() for name in ("phase", "steps", "sample_count", "total_ns"))
    for part, phase, steps, samples, total_ns in zip(place.tolist(), *columns, strict=True):
        if phase is None:
            values[:3, part] += steps, samples or 0, total_ns
        elif phase in PHASES:
            values[3 + PHASES.index(phase), part] += total_ns
    return ends.astype(np.int64), values


def _in_blocks(sums: pa.Table, ranks: list[_RankRows]) -> Floats:
    """Return the quantities of all ranks by block of steps, of which most are about as long.

    A block ends where no rank is inside a part.
    """
    ends = np.unique(np.concatenate([rank.ends for rank in ranks]))
    for rank in np.unique(sums["rank"].to_numpy()).tolist():
        own = rows_of_rank(sums, rank)
        first, place = np.unique(own["first_step"].to_numpy(), return_index=True)
        last = own["last_step"].to_numpy()[place]
        part = np.maximum(np.searchsorted(first, ends, side="right") - 1, 0)
        ends = ends[(ends < first[part]) | (ends >= last[part])]
    if not len(ends):
        ends = np.array([max(rank.ends.max() for rank in ranks)])
    lengths = sums["last_step"].to_numpy() - sums["first_step"].to_numpy() + 1
    usual = max(int(np.median(lengths)), int(ends[-1] - ends[0]) // _MOST_BLOCKS, 1)
    backwards = ends[::-1]
    _, kept = np.unique((backwards[0] - backwards) // usual, return_index=True)
    ends = np.sort(backwards[kept])
    blocks = np.zeros((3 + len(PHASES), len(ends)))
    for each in ranks:
        place = np.minimum(np.searchsorted(ends, each.ends), len(ends) - 1)
        for row, values in enumerate(each.values):
            blocks[row] += np.bincount(place, weights=values, minlength=len(ends))
    return blocks[:, blocks[0] > 0]


def _estimate(blocks: Floats, ranks: int) -> tuple[Estimate, Estimate, tuple[PhaseShare, ...]]:
    """Return throughput, step time and phases, from the same resamples of the blocks."""
    steps, samples, wall_ns = blocks[:3]
    names, parts = [], []
    for phase, part in zip(PHASES, blocks[3:], strict=True):
        if part.any():
            names.append(phase)
            parts.append(part)
    names.append(UNKNOWN)
    parts.append(wall_ns - sum(parts, np.zeros_like(wall_ns)))
    count = len(names)
    walls, counts = np.tile(wall_ns, (count, 1)), np.tile(steps, (count, 1))
    shares = np.isin(np.arange(2 + 2 * count), np.arange(2, 2 + count))
    throughput, step_ns, *rest = estimate_ratios(
        np.concatenate([[samples * ranks, wall_ns], parts, parts]),
        np.concatenate([[wall_ns / 1e9, steps], walls, counts]),
        shares=shares,
    )
    if not samples.any():
        throughput = Estimate(float("nan"))
    phases = []
    for place, name in enumerate(names):
        phases.append(PhaseShare(name, rest[place], rest[count + place]))
    return throughput, step_ns, tuple(phases)
