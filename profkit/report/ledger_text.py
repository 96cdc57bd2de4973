"""The ledger of two runs, and the table of more, as plain text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence

from profkit.analysis.config_join import NONE
from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import Estimate, scale
from profkit.analysis.exchange import LATE_SHARE
from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement
from profkit.explain.kernel_ledger import KernelLedger, KernelRow
from profkit.explain.ledger import Ledger, Row, judge, why_not
from profkit.explain.meeting import Meeting
from profkit.explain.rules.base import Finding
from profkit.explain.scaling import FACTORS, ScalingRow
from profkit.report.as_text import WIDTH
from profkit.text import amount, byte_size, duration, percent, plural, safe_text, significant, table

MOST_DIFFERENCES = 12
LONGEST_VALUE = 22
LONGEST_NAME = 48
LONGEST_KERNEL = 44
MOST_KERNELS = 5
"""Rows of a phase's kernels that are shown; all are in the JSON."""

LEAST_KERNEL = 0.002
"""A kernel whose change is a smaller share of the base's step is not shown."""


def explained(view: Explained, judgements: Sequence[Judgement] = ()) -> str:
    """One screen: the verdict, the rows, the causes, and what else differs."""
    ledger = view.ledger
    blocks = [
        _heading(view),
        _rows(ledger),
        kernels(view),
        _steps(ledger),
        _findings(view.findings),
        _differences(view),
        gates(judgements),
    ]
    return "\n\n".join(block for block in blocks if block)


def _fold(text: str, indent: str = "  ") -> str:
    """Lines that fit, the first indented by `indent`, the others by two more; nothing in them steers a terminal."""
    return "\n".join(
        textwrap.wrap(
            safe_text(text),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_on_hyphens=False,
        )
    )


def _heading(view: Explained) -> str:
    ledger = view.ledger
    sides = [
        ("base", view.case.base_name, pace(ledger, ledger.total.base, view.case.base.world_size)),
        (
            "target",
            view.case.target_name,
            pace(ledger, ledger.total.target, view.case.target.world_size),
        ),
    ]
    lines = [table([[side, _short(name, LONGEST_NAME), speed] for side, name, speed in sides])]
    lines.append(_fold(f"{ledger.verdict.value}: {verdict_words(ledger)}"))
    lines += [_fold(f"mind: {caveat}") for caveat in view.caveats]
    return "\n".join(lines)


def pace(ledger: Ledger, own: Estimate, gpus: int) -> str:
    if not own.value > 0:
        return "no steps"
    unit = "samples/s" if ledger.per_sample else "steps/s"
    return f"{significant(1e9 * gpus / own.value, 4)} {unit} on {plural(gpus, 'rank')}"


def verdict_words(ledger: Ledger) -> str:
    change = ledger.change
    what = "a sample" if ledger.per_sample else "a step"
    size = f"{what} takes {percent(abs(change.value))} {'more' if change.value > 0 else 'less'} time on a rank"
    efficiency = f"; a rank's throughput is {percent(ledger.efficiency.value)} of the base's"
    reason = why_not(ledger)
    if not math.isfinite(change.value):
        return reason
    return (
        size
        + _interval(change, percent)
        + efficiency
        + (f"; {reason}{_largest(ledger)}" if reason else "")
    )


def _largest(ledger: Ledger) -> str:
    """What a reader looks for where no cause can be named for sure."""
    row = ledger.largest
    if row is None or not math.isfinite(row.delta.value):
        return ""
    return f"; as far as the steps there are tell, most of the difference is {row.name}: {signed(row.delta.value * ledger.samples_per_step)} a step"


def _interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" (95 % interval {show(estimate.low)} to {show(estimate.high)})"


def _rows(ledger: Ledger) -> str:
    """In time of a step of the base's batch, which reads better than time per sample and is the same for both sides."""
    factor = ledger.samples_per_step
    title = (
        f"  where the time goes, per {amount(factor)} samples of a rank (a step of the base)"
        if ledger.per_sample
        else "  where a step goes"
    )
    lines = [["", "base", "target", "difference", "95 % interval", ""]]
    for row in ledger.rows:
        lines.append(row_cells(ledger, row, row.name, factor))
        lines += [row_cells(ledger, part, "  " + part.name, factor) for part in row.inside]
    lines.append(row_cells(ledger, ledger.total, "total", factor))
    blocks = [title, table(lines, right=frozenset({1, 2, 3}))]
    if ledger.beside:
        hidden = "; ".join(
            f"{row.name} {duration(row.base.value * factor)} and {duration(row.target.value * factor)}"
            for row in ledger.beside
        )
        blocks.append(_fold(f"overlapped, and not in the rows: {hidden}"))
    if words := switched_words(ledger):
        blocks.append(_fold(words))
    return "\n".join(blocks)


def switched_words(ledger: Ledger) -> str:
    """What profkit took of both sides in all: its row has only what can be counted."""
    row, factor = ledger.switched, ledger.samples_per_step
    if row is None:
        return ""
    delta = scale(row.delta, factor)
    sides = f"{duration(row.base.value * factor)} and {duration(row.target.value * factor)}"
    return f"{row.name} in all, by switching it off: {sides}, somewhere in the rows; difference {signed(delta.value)}{_interval(delta, signed)}"


def row_cells(ledger: Ledger, row: Row, name: str, factor: float) -> list[str]:
    """A row's name, both sides, the difference, its interval and what that means."""
    delta = row.delta
    cells = [
        duration(row.base.value * factor),
        duration(row.target.value * factor),
        signed(delta.value * factor),
    ]
    interval = (
        "-"
        if delta.low is None or delta.high is None
        else f"{signed(delta.low * factor)} to {signed(delta.high * factor)}"
    )
    return [name, *cells, interval, _word(ledger, delta)]


def _word(ledger: Ledger, delta: Estimate) -> str:
    if ledger.unlike:
        return ""
    return judge(delta, ledger.total.base.value).value


def signed(ns: float) -> str:
    return ("+" if ns > 0 else "") + duration(ns)


def kernels(view: Explained) -> str:
    """What the captured steps show of the computing rows: in each phase, the operators that changed most."""
    found = view.kernels
    if found is None:
        return ""
    lines = [["", "base", "target", "difference", "calls"]]
    for phase in found.phases:
        shown, hidden = kernels_to_show(found.of_phase(phase), view.ledger, MOST_KERNELS)
        lines.append([phase, *kernel_cells([*shown, *hidden])])
        lines += [["  " + _short(row.name, LONGEST_KERNEL), *kernel_cells([row])] for row in shown]
        if shown and hidden:
            lines.append([f"  {other_kernels(hidden)}", *kernel_cells(hidden)])
    return "\n".join(
        [
            "  " + kernels_title(found),
            table(lines, right=frozenset({1, 2, 3, 4})),
            *map(_fold, kernel_words(found, view.ledger)),
        ]
    )


def kernels_title(found: KernelLedger) -> str:
    return f"{found.noun}s in the captured steps ({found.base_steps:,} and {found.target_steps:,} of all ranks), which are slower than others"


def kernels_to_show(
    rows: Sequence[KernelRow], ledger: Ledger, most: int
) -> tuple[Sequence[KernelRow], Sequence[KernelRow]]:
    """The rows of a phase that changed by enough, at most so many, and all others."""
    least = LEAST_KERNEL * ledger.total.base.value * ledger.samples_per_step
    shown = [row for row in rows if abs(row.delta_ns) >= least][:most]
    return shown, [row for row in rows if row not in shown]


def other_kernels(hidden: Sequence[KernelRow]) -> str:
    return f"{plural(len(hidden), 'other row')}, in --json"


def kernel_cells(rows: Sequence[KernelRow]) -> list[str]:
    base, target = (
        sum(side) for side in zip(*((row.base_ns, row.target_ns) for row in rows), strict=True)
    )
    calls = [
        amount(sum(side))
        for side in zip(*((row.base_calls, row.target_calls) for row in rows), strict=True)
    ]
    return [duration(base), duration(target), signed(target - base), " to ".join(calls)]


def kernel_words(found: KernelLedger, ledger: Ledger) -> Iterator[str]:
    """Shares that are known on both sides, and copies that are worth a word."""
    if (
        abs(found.moving_added_ns)
        >= LEAST_KERNEL * ledger.total.base.value * ledger.samples_per_step
    ):
        yield f"casts and layout copies: {signed(found.moving_added_ns)} a captured step"
    shares = {
        "of the work that could run on Tensor Cores, what does": found.tensor_core_share,
        "of the kernels' time, what the idle device waited to be launched": found.launch_bound_share,
        "of its ceiling, what work of known size reaches": found.ceiling_share,
    }
    for words, share in shares.items():
        if share.base is not None and share.target is not None:
            yield f"{words}: {percent(share.base)} and {percent(share.target)}"


def _steps(ledger: Ledger) -> str:
    return "\n".join(
        _fold(f"{side} {steps_of(costs)}")
        for side, costs in (("base:  ", ledger.base), ("target:", ledger.target))
    )


def steps_of(costs: RunCosts) -> str:
    """Which steps the rows are about, and what those that stand apart would add."""
    apart = [
        f"{plural(each.steps, 'step')} {each.reason} ({signed(each.excess_ns)} a step, if they were averaged in)"
        for each in costs.apart
    ]
    return f"{plural(costs.steps, 'steady step')}; apart: {', '.join(apart) or 'none'}"


def _findings(findings: Sequence[Finding]) -> str:
    return "\n".join(line for finding in findings for line in _finding(finding))


def finding_cost(finding: Finding) -> str:
    """What a cause costs, and which part of the gap that is."""
    cost = (
        f"{duration(finding.cost_ns.value)} a step{_interval(finding.cost_ns, duration)}"
        if finding.cost_ns
        else "costs nothing"
    )
    return cost + (
        f", {percent(finding.share_of_gap, 0)} of the gap"
        if finding.share_of_gap is not None and math.isfinite(finding.share_of_gap)
        else ""
    )


def _finding(finding: Finding) -> Iterator[str]:
    yield _fold(f"{finding.kind}: {finding_cost(finding)}")
    yield _fold(finding.evidence, "    ")
    if finding.remedy:
        yield _fold("try: " + finding.remedy, "    ")


def _differences(view: Explained) -> str:
    """What else differs, with the rows that it can affect; the most telling first."""
    found = view.ledger.differences
    if not found:
        return "  nothing else differs: every recorded knob, version and variable is the same"
    shown = found[:MOST_DIFFERENCES]
    rows = [
        ["differs", "base", "target", "can affect"],
        *([each.name, each.base, each.target, each.rows] for each in shown),
    ]
    lines = [table([[_short(cell) for cell in row] for row in rows])]
    if len(found) > len(shown):
        lines.append(f"  and {plural(len(found) - len(shown), 'more difference')} in --json")
    elif all(each.rows == NONE for each in found):
        lines.append("  nothing else differs, and none of this affects a row")
    return "\n".join(lines)


def _short(value: str, longest: int = LONGEST_VALUE) -> str:
    shown = safe_text(value)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def gates(judgements: Sequence[Judgement]) -> str:
    return "\n".join(
        _fold(f"gate {each.gate}: {each.outcome.value}, {each.why}") for each in judgements
    )


def scaling(rows: Sequence[ScalingRow]) -> str:
    """The runs side by side; each row's factors multiply out to its efficiency."""
    header = [
        "run",
        "ranks",
        "throughput",
        "speed-up",
        "efficiency",
        *FACTORS[:-1],
        "communication",
    ]
    lines = [header, *(_scaling_line(row) for row in rows)]
    title = "  efficiency = " + " x ".join(FACTORS)
    notes = (
        []
        if all(row.waiting_known for row in rows)
        else [
            _fold(
                "waiting for late ranks could not be told from transfer in all runs, and is communication there"
            )
        ]
    )
    return "\n".join(
        [
            title,
            table(lines, right=frozenset(range(1, len(header)))),
            *notes,
            *_scaling_intervals(rows),
        ]
    )


def _scaling_line(row: ScalingRow) -> list[str]:
    figures = (
        row.speed_up.value,
        row.efficiency.value,
        *(row.factors[name].value for name in FACTORS),
    )
    return [
        _short(row.name),
        str(row.gpus),
        significant(row.throughput.value, 4),
        *(significant(value) for value in figures),
    ]


def _scaling_intervals(rows: Sequence[ScalingRow]) -> Iterator[str]:
    for row in rows[1:]:
        yield _fold(f"{_short(row.name)}: {scaling_words(row)}")
        yield from (_fold(words, "    ") for words in meeting_words(row.meeting))


def scaling_words(row: ScalingRow) -> str:
    """A run's efficiency against the first one's, and what takes most of it."""
    loss = (
        f"; {row.largest_loss} takes most of it ({significant(row.factors[row.largest_loss].value)})"
        if row.largest_loss
        else ""
    )
    return f"efficiency {percent(row.efficiency.value)}{_interval(row.efficiency, percent)}{loss}"


def meeting_words(found: Meeting | None) -> Iterator[str]:
    """Who is waited for, how often and why; and how near transfer comes to what the links can do."""
    if found is None:
        return
    if found.waiting_ns is None or found.transfer_ns is None:
        yield f"only {found.matched:,} of {plural(found.collectives, 'collective')} were seen on all of their ranks, so nobody is named"
    else:
        yield f"a rank waits {duration(found.waiting_ns)} a step for others, and {duration(found.transfer_ns)} while data moves, beyond what backward hides"
    yield from _waited_for(found)
    for use in found.links:
        if use.bus_bytes_per_s is not None:
            share = use.share_of_ceiling
            reached = (
                f", {percent(share, 0)} of what the links reach alone" if share is not None else ""
            )
            unknown = (
                ""
                if reached
                else "; 'profkit ceilings --links' measures what the links reach alone"
            )
            yield f"{use.op} over {use.backend}: {byte_size(use.bytes_per_step)} a step at {byte_size(use.bus_bytes_per_s)}/s on the bus{reached}{unknown}"


def _waited_for(found: Meeting) -> Iterator[str]:
    """The ranks that are waited for again and again; where they take turns, that."""
    named = [each for each in found.waited_for if each.share >= LATE_SHARE]
    for each in named or found.waited_for[:1]:
        turns = "" if named else "ranks take turns at being last; most is waited for this one: "
        late = f", late in {each.phase} by {duration(each.excess_ns)} a step" if each.phase else ""
        last = f"rank {each.rank} is last in {each.last_in:,} of {plural(found.collectives, 'collective')}"
        yield f"{turns}{last}; {percent(each.share, 0)} of all waiting is for it{late}"
