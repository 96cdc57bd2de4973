"""The words for two runs, or more, that text, pages and the interface share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from profkit.analysis.bandwidth import LinkUse
from profkit.analysis.overview import counted_ranks
from profkit.explain.kernel_ledger import KernelLedger, KernelRow
from profkit.explain.ledger import Ledger, Row, Verdict, why_not, why_not_at_all
from profkit.explain.meeting import Meeting
from profkit.explain.precision import CASTS, LAUNCHES, MATRIX, OTHER_WORK, PrecisionAccount
from profkit.explain.scaling import ScalingRow
from profkit.frame.costs import RunCosts
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate, scale
from profkit.frame.run_frame import UNTIMED_EXCHANGE
from profkit.report.code_sections import BASE, TARGET
from profkit.show.document import Column, Table
from profkit.show.figures import Unit, interval_in_brackets, reason_name
from profkit.text import (
    byte_size,
    duration,
    percent,
    plural,
    safe_text,
    signed,
    significant,
)
from profkit.trace import Trace
from profkit.vocab import Phase

MOST_SHARE = 0.5
"""A row holds most of a difference from this share on."""

LEAST_KERNEL = 0.002
"""A kernel whose change is a smaller share of the base's step is not shown."""


# -- the verdict -----------------------------------------------------------------------------------


def verdict_name(verdict: Verdict) -> str:
    if verdict is Verdict.CANNOT_JUDGE:
        return "inconclusive"
    return str(verdict.value)


def pace(ledger: Ledger, own: Estimate, trace: Trace, unit: str = "samples") -> tuple[str, str]:
    """Return the speed of a side, and the ranks that it is of."""
    if not own.value > 0:
        return "no steps", ""
    gpus = trace.manifest.world_size
    rate = 1e9 * counted_ranks(trace) / own.value
    if not ledger.per_sample:  # all ranks take the same steps
        unit, rate = "steps", 1e9 / own.value
    return f"{significant(rate, 4)} {unit}/s", plural(gpus, "rank")


def change_words(ledger: Ledger, unit: str, *, is_short: bool = False) -> str:
    """Return how much longer or shorter one of what a run trains on takes, with the interval.

    `unit` is the plural of what that is. A headline is short: it has the bounds alone.
    """
    what = "a step"
    if ledger.per_sample:
        article = "an" if unit[0] in "aeiou" else "a"
        what = f"{article} {unit.removesuffix('s')}"
    change = ledger.change
    direction = "more" if change.value > 0 else "less"
    size = percent(abs(change.value))
    if is_short:
        bounds = ""
        if change.low is not None and change.high is not None:
            low, high = sorted((abs(change.low), abs(change.high)))
            if change.low < 0 < change.high:
                low, high = change.low, change.high
            bounds = f" ({percent(low)} to {percent(high)})"
        return f"{what} takes {size} {direction} time{bounds}"
    interval = interval_in_brackets(change, percent)
    return f"{what} takes {size} {direction} time per rank{interval}"


def verdict_words(ledger: Ledger) -> str:
    """Return the efficiency, and why the change is inconclusive if it is."""
    reason = why_not(ledger)
    if not math.isfinite(ledger.change.value):
        return reason
    words = f"throughput per rank is {percent(ledger.efficiency.value)} of the base's"
    if ledger.verdict is Verdict.NEUTRAL and ledger.smallest_seen is not None:
        words += f"; a change of {percent(ledger.smallest_seen)} would have been seen"
    if not reason or ledger.evident:
        return words
    words += f"; {reason}"
    row = ledger.largest
    if row is not None and len(ledger.rows) > 1 and math.isfinite(row.delta.value):
        difference = signed(row.delta.value * ledger.samples_per_step)
        so_far = "" if ledger.doubt else "in the steps recorded so far, "
        is_most = abs(row.delta.value) > MOST_SHARE * abs(ledger.total.delta.value)
        largest = "most" if is_most else "the largest part"
        words += f"; {so_far}{largest} of the difference is {row.name}: {difference} per step"
    return words


def doubt_words(ledger: Ledger) -> str:
    """Return only why the change is inconclusive, if it is: the rest stands around it."""
    if ledger.evident or not why_not(ledger):
        return ""
    if why_not_at_all(ledger):
        return why_not_at_all(ledger)
    if ledger.doubt:
        return "the machine may have made this change: --all says why, and how to tell"
    return f"the change may be nothing or much: {ledger.what_helps}"


# -- rows ------------------------------------------------------------------------------------------


def row_table(
    ledger: Ledger, rows: Sequence[Row], shown: Sequence[Row] | None = None, *, total: bool = False
) -> Table:
    """Return rows with both sides, the difference, its interval and its verdict.

    Programs get ns per sample, and people the time per step of the base's batch. The total comes
    last for people.
    """
    factor = ledger.samples_per_step
    side = Unit(lambda ns, **digits: duration(ns * factor, **digits))
    change = Unit(lambda ns, **digits: signed(ns * factor, **digits))
    columns = (
        Column("name", "", lambda row: safe_text(row.name), role=str, stretches=True),
        Column("base_ns", BASE, lambda row: row.base, side),
        Column("target_ns", TARGET, lambda row: row.target, side),
        Column("difference_ns", "difference", lambda row: row.delta, change, interval=True),
        Column("verdict", "verdict", partial(row_verdict, ledger), role=_role_of),
    )
    if total:
        shown = (*rows, ledger.total)
    return Table(columns, rows, shown, inside=lambda row: row.inside, total=total)


_VERDICT_ROLES = {
    Verdict.REGRESSION: "bad",
    Verdict.IMPROVEMENT: "good",
    Verdict.PROBABLE_REGRESSION: "bad",
    Verdict.PROBABLE_IMPROVEMENT: "good",
    Verdict.NEUTRAL: "dim",
    Verdict.CANNOT_JUDGE: "unsure",
}


def _role_of(verdict: str) -> str:
    names = {verdict_name(each): role for each, role in _VERDICT_ROLES.items()}
    return names.get(verdict, "dim")


def row_verdict(ledger: Ledger, row: Row) -> str:
    """Return the verdict on a row; empty if the runs cannot be compared."""
    if row.sums and not row.delta.judged:
        return ""
    return "" if ledger.unlike else verdict_name(ledger.verdict_of(row))


def both_sides(row: Row, factor: float) -> str:
    return f"{duration(row.base.value * factor)} and {duration(row.target.value * factor)}"


def _own_cost(cost: Estimate, factor: float) -> str:
    """Return the cost of profkit on one side: never below zero, though a difference may be."""
    if cost.low is None or cost.high is None or cost.low > 0:
        return duration(cost.value * factor)
    if cost.high <= 0:
        return "none"
    return f"not above the noise (at most {duration(cost.high * factor)})"


def switched_words(ledger: Ledger) -> str:
    """Return the whole cost of profkit on both sides; its row holds only what can be counted."""
    row, factor = ledger.switched, ledger.samples_per_step
    if row is None:
        return ""
    delta = scale(row.delta, factor)
    return (
        f"{row.name} in total, measured with control steps (recording off): "
        f"{_own_cost(row.base, factor)} and {_own_cost(row.target, factor)}, spread over the rows; "
        f"difference {signed(delta.value)}"
        f"{interval_in_brackets(delta, signed)}"
    )


def steps_of(costs: RunCosts) -> str:
    """Return the steps behind the rows, and what the excluded ones would add."""
    excluded = []
    for apart in costs.apart:
        effect = f"{signed(apart.excess_ns)} per step if included"
        excluded.append(f"{apart.steps:,} {reason_name(apart.reason)}: {effect}")
    steps = plural(costs.steps, "steady step")
    if costs.unclocked:
        steps += f" of {costs.ranks:,} of {plural(costs.ranks + len(costs.unclocked), 'rank')}"
    if costs.one_in > 1:
        steps += f" (a sample of its steps: one in {costs.one_in:,})"
    return f"{steps}; excluded: {'; '.join(excluded) or 'none'}"


def clock_notes(ledger: Ledger) -> Iterator[str]:
    """Yield the clock of the phases if there is a device, and what was not timed."""
    if {ledger.base.clock, ledger.target.clock} == {PhaseClock.DEVICE}:
        yield "Phases are the devices' times."
    yield from untimed_notes(ledger)


def untimed_notes(ledger: Ledger) -> Iterator[str]:
    """Yield what was not timed of the devices."""
    if {ledger.base.clock, ledger.target.clock} == {PhaseClock.LAUNCH}:
        yield (
            "Neither run has device times: the wait for data is the host's, and nothing says "
            "what the device did in the rest."
        )
    if ledger.find(Phase.BACKWARD.value) and not ledger.base.exchange_timed:
        yield (
            "Not all runs timed the device's wait for the gradient exchange: on both sides it is "
            "part of backward, and its share there is not known."
        )


# -- kernels ---------------------------------------------------------------------------------------


def least_kernel_ns(ledger: Ledger) -> float:
    return LEAST_KERNEL * ledger.total.base.value * ledger.samples_per_step


def kernels_to_show(
    rows: Sequence[KernelRow], ledger: Ledger, most: int
) -> tuple[list[KernelRow], list[KernelRow]]:
    """Split the rows of a phase: at most `most` that changed enough, and all others."""
    least = least_kernel_ns(ledger)
    shown: list[KernelRow] = []
    others: list[KernelRow] = []
    for row in rows:
        if abs(row.delta_ns) >= least and len(shown) < most:
            shown.append(row)
        else:
            others.append(row)
    return shown, others


def kernel_words(found: KernelLedger, ledger: Ledger) -> Iterator[str]:
    """Yield the shares that are known on both sides, and the change of copies if it matters."""
    least = least_kernel_ns(ledger)
    if abs(found.moving_added_ns) >= least:
        yield f"Casts and layout copies: {signed(found.moving_added_ns)} per captured step."
    shares = {
        "Share of eligible work that runs on Tensor Cores": found.tensor_core_share,
        "Share of the device's time in which it was idle because the host launched late": (
            found.launched_late_share
        ),
        "Share of its ceiling that work of known size reaches": found.ceiling_share,
    }
    for words, share in shares.items():
        if share.base is not None and share.target is not None:
            yield f"{words}: {percent(share.base)} and {percent(share.target)}."


NO_KERNELS_OF_BOTH = (
    "Without kernels of both runs it is not known how much of the difference is matrix work, "
    "casts, other kernels, or waiting for launches; two runs of 'profkit run --kernels 40:42' show "
    "it."
)


def precision_words(found: PrecisionAccount) -> Iterator[str]:
    """Yield what precision could speed up, what it did, and what it could not."""
    matrix, others = found.part(MATRIX), found.part(OTHER_WORK)
    launches, casts = found.part(LAUNCHES), found.part(CASTS)
    yield (
        "Matrix work, which alone has faster units for fewer bits, is "
        f"{percent(found.share(MATRIX))} of the base's captured step; it changes by "
        f"{signed(matrix.delta_ns)}."
    )
    if others.ratio is not None:
        yield (
            f"Other kernels take {significant(others.ratio, 2)} times as long. Those that memory "
            "limits take half as long with half the bytes."
        )
    least = LEAST_KERNEL * found.base_ns
    if abs(casts.delta_ns) >= least:
        yield f"Casts and layout copies change by {signed(casts.delta_ns)}."
    if launches.target_ns >= least or launches.base_ns >= least:
        yield (
            f"For {duration(launches.base_ns)} and {duration(launches.target_ns)} the device waits "
            "for the host's launches, which no precision makes faster."
        )


# -- scaling ---------------------------------------------------------------------------------------


def scaling_words(row: ScalingRow) -> str:
    """Return a run's efficiency against the first run, and the factor that costs most."""
    efficiency = row.efficiency
    interval = interval_in_brackets(efficiency, percent)
    words = f"efficiency {percent(efficiency.value)}{interval}"
    if row.doubt:
        words += f"; {row.doubt}"
    if row.largest_loss:
        factor = significant(row.factors[row.largest_loss].value)
        words += f"; {row.largest_loss} takes most of it ({factor})"
    if row.clocks:
        words += f"; it has no factors: {row.clocks}"
    elif not row.exchange_timed:
        words += f"; computation holds the exchange: {UNTIMED_EXCHANGE}"
    return words


def meeting_words(found: Meeting | None) -> Iterator[str]:
    """Yield who is waited for, how often and why; and how transfer compares with the links."""
    if found is None:
        return
    collectives = plural(found.collectives, "collective")
    if not found.timed:
        yield "the devices' waits for the exchange were not timed on all ranks: nobody is named"
    elif found.waiting_ns is None or found.transfer_ns is None:
        yield (
            f"only {found.matched:,} of {collectives} were seen on all of their ranks, "
            "so nobody is named"
        )
    else:
        yield (
            f"each rank waits {duration(found.waiting_ns)} per step for others, and "
            f"{duration(found.transfer_ns)} while data moves, not counting what backward hides"
        )
    late = [waited for waited in found.waited_for if waited.is_late]
    for waited in late or found.waited_for[:1]:
        words = f"rank {waited.rank} is last in {waited.last_in:,} of {collectives}"
        words += f"; {percent(waited.share, 0)} of all waiting is for it"
        if waited.phase:
            words += f", late in {waited.phase} by {duration(waited.excess_ns)} per step"
        if not late:
            words = f"ranks take turns at being last; most is waited for this one: {words}"
        yield words
    for use in found.links:
        if use.bus_bytes_per_s is not None:
            yield _link_words(use, use.bus_bytes_per_s)


def _link_words(use: LinkUse, bus_bytes_per_s: float) -> str:
    words = (
        f"{use.op} over {use.backend}: {byte_size(use.bytes_per_step)} per step at "
        f"{byte_size(bus_bytes_per_s)}/s on the bus"
    )
    if use.share_of_ceiling is None:
        return f"{words}; 'profkit ceilings --links' measures what the links reach alone"
    return f"{words}, {percent(use.share_of_ceiling, 0)} of what the links reach alone"
