"""Screens as plain text: what a person reads over SSH and pastes into an issue."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from profkit.analysis.bandwidth import LinkUse
from profkit.analysis.ceilings import Ceilings
from profkit.analysis.estimate import Estimate
from profkit.analysis.overview import Overview, PhaseShare
from profkit.analysis.phases import UNKNOWN
from profkit.text import byte_size, duration, percent, plural, safe_text, significant, table
from profkit.trace import Verification
from profkit.vocab import PHASES, Integrity, Phase

if TYPE_CHECKING:
    from profkit.machine.doctor import Finding

WIDTH = 100
"""Columns of a screen. What cannot be folded, as a path that is to be copied, may be longer."""

BAR_WIDTH = 12


def overview(view: Overview, *, next_command: str = "") -> str:
    """One screen for one run."""
    blocks = [
        _warning(view),
        _heading(view),
        _headline(view),
        _phases(view),
        *details(view),
        _footer(view, next_command),
    ]
    return "\n\n".join(block for block in blocks if block)


def details(view: Overview) -> list[str]:
    """What only some runs have: several ranks, captured kernels."""
    return [
        block
        for block in (_exchange(view), _links(view), _kernels(view), _by_kernel(view))
        if block
    ]


def _warning(view: Overview) -> str:
    """What must be read first: figures of a run that profkit itself slowed down are not the job's own."""
    if not view.own_cost.exceeds_budget(view.step_ns.value):
        return ""
    return _fold(
        f"profkit cost this run more than it may (1 % of a step or 0.15 ms): {own_cost_words(view)}"
    )


def _heading(view: Overview) -> str:
    config = view.config
    parts = [
        view.workload,
        view.framework,
        str(config.get("precision", "")),
        plural(view.world_size, "rank"),
        str(config.get("device", "")),
    ]
    lines = [_joined(parts), _joined(_settings(config))]
    if reduced := config.get("reduced"):
        lines.append(f"reduced for this machine: {safe_text(str(reduced))}")
    return "\n".join(_fold(line) for line in lines if line)


def _settings(config: Mapping[str, Any]) -> Iterator[str]:
    if "batch_size" in config:
        yield f"batch {config['batch_size']} a rank" + (
            f", {config['global_batch_size']} in all" if "global_batch_size" in config else ""
        )
    if "data" in config:
        yield f"data {config['data']}"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(safe_text(part) for part in parts if part)


def _fold(text: str, indent: str = "") -> str:
    """`text` in as many lines as it takes; the ones after the first are indented."""
    return "\n".join(
        textwrap.wrap(text, WIDTH, subsequent_indent=indent or "  ", break_on_hyphens=False)
    )


def _headline(view: Overview) -> str:
    rows = [
        [
            "throughput",
            f"{significant(view.throughput.value, 4)} samples/s",
            interval_words(view.throughput, plain),
        ]
    ]
    rows.append(["step", duration(view.step_ns.value, 4), interval_words(view.step_ns, duration)])
    lines = [table(rows)]
    lines.append(_fold("  " + steps_line(view), " " * 9))
    if not view.judged:
        lines.append(_fold(f"  cannot judge: {why_not_judged(view)}", " " * 4))
    if view.first_loss is not None and view.last_loss is not None:
        lines.append(
            f"  loss  {significant(view.first_loss, 5)} at the first step, {significant(view.last_loss, 5)} at the last"
        )
    return "\n".join(lines)


def why_not_judged(view: Overview) -> str:
    if view.bad_times:
        return f"the source has times that cannot be ({safe_text('; '.join(view.bad_times))})"
    if view.changed:
        return f"a file was changed since it was written ({safe_text('; '.join(view.changed))})"
    if view.silent_ranks:
        return f"{view.silent_ranks:,} of {plural(view.world_size, 'rank')} left no steps, so what the whole job trained on is not known; step and shares are the others'"
    if not view.samples_known and not view.steps_needed:
        return "nothing says how many samples a step trains on, so there is no throughput; the rest holds"
    return (
        f"an interval needs {plural(view.steps_needed, 'step')} more"
        if view.steps_needed
        else "the steps that are used took no time at all"
    )


def steps_line(view: Overview) -> str:
    """How many steps the figures are about, and why others are not in them."""
    used = f"steps  {len(view.selection.steps):,} used of {view.steps_seen:,}"
    left = ", ".join(f"{count:,} {reason}" for reason, count in view.selection.left_out.items())
    return f"{used}; left out: {left}" if left else used


def plain(value: float) -> str:
    return significant(value, 4)


def interval_words(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"95 % interval {show(estimate.low)} to {show(estimate.high)}"


def _phases(view: Overview) -> str:
    if not view.phases:
        return ""
    header = ["phase", "", "share", "95 % interval", "a step", "where a step goes"]
    return table([header, *(_phase_row(part) for part in view.phases)], right=frozenset({2, 4}))


def _phase_row(part: PhaseShare) -> list[str]:
    interval = (
        "-"
        if part.share.low is None or part.share.high is None
        else f"{percent(part.share.low).removesuffix(' %')} to {percent(part.share.high)}"
    )
    return [
        part.name,
        _bar(part.share.value),
        percent(part.share.value),
        interval,
        duration(part.step_ns.value),
        meaning(part.name),
    ]


def meaning(name: str) -> str:
    """What a part of a step is."""
    if name == UNKNOWN:
        return "wall time minus all of the above"
    return Phase(name).meaning if name in PHASES else ""


def _bar(share: float) -> str:
    """A bar of eighths; a share below zero has none, and its figure says so."""
    eighths = round(max(0.0, min(1.0, share)) * BAR_WIDTH * 8) if math.isfinite(share) else 0
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


MOST_RANKS = 8


def _exchange(view: Overview) -> str:
    """The gradient exchange by rank: hidden under backward or exposed, and the exposed part in its parts."""
    if view.exchange is None:
        return ""
    rows = [["rank", "exposed", "waiting", "transfer", "not ready", "hidden"]]
    shown = sorted(view.exchange.ranks, key=lambda part: -part.exposed_ns)[:MOST_RANKS]
    for part in sorted(shown, key=lambda part: part.rank):
        cells = (
            part.exposed_ns,
            part.waiting_ns,
            part.transfer_ns,
            part.not_ready_ns,
            part.hidden_ns,
        )
        rows.append(
            [str(part.rank), *("-" if value is None else duration(value) for value in cells)]
        )
    left = len(view.exchange.ranks) - len(shown)
    title = "  gradient exchange a step" + (
        f" (the {MOST_RANKS} ranks with most of it exposed; {plural(left, 'more rank')} in --json)"
        if left
        else ""
    )
    return "\n".join(
        [title, table(rows, right=frozenset(range(1, 6))), *map(_fold, _exchange_words(view))]
    )


def _exchange_words(view: Overview) -> Iterator[str]:
    exchange, late = view.exchange, view.late_rank
    if exchange and exchange.matched < exchange.collectives:
        yield f"  who waits cannot be judged: {exchange.collectives - exchange.matched:,} of {exchange.collectives:,} collectives were not seen on all ranks"
    elif late:
        cause = (
            f"; its {late.phase} takes {duration(late.excess_ns)} longer than the others'"
            if late.excess_ns > 0
            else ""
        )
        yield f"  rank {late.rank} is late: the others wait {duration(late.waited_ns)} a step, {percent(late.share, 0)} of it for this rank{cause}"


MOST_LINKS = 6


def _links(view: Overview) -> str:
    """What each communicator's operations moved a step, how fast, and what the same sizes reach alone."""
    if not view.links:
        return ""
    header = [
        "collectives a step",
        "",
        "messages",
        "bytes",
        "transfer",
        "algorithm",
        "bus",
        "alone",
    ]
    rows = [_link(use) for use in view.links[:MOST_LINKS]]
    left = len(view.links) - len(rows)
    return table([header, *rows], right=frozenset(range(2, 8))) + (
        f"\n  and {left:,} more in --json" if left else ""
    )


def _link(use: LinkUse) -> list[str]:
    where = f"{safe_text(use.backend)}, {plural(use.group_size, 'rank')}"
    rates = (use.algorithm_bytes_per_s, use.bus_bytes_per_s, use.ceiling_bus_bytes_per_s)
    moved = [
        significant(use.messages_per_step),
        byte_size(use.bytes_per_step),
        duration(use.transfer_ns_per_step),
    ]
    return [
        safe_text(use.op),
        where,
        *moved,
        *("-" if rate is None else f"{byte_size(rate)}/s" for rate in rates),
    ]


MOST_KINDS = 6


def _kernels(view: Overview) -> str:
    """What the windows of steps show in which kernels were captured, and what they cost."""
    found = view.kernels
    if found is None:
        return ""
    what = "operators" if found.devices == ("cpu",) else "kernels"
    busy = f"{plural(found.steps, 'step')} captured on {', '.join(found.devices) or 'no device'}, {duration(found.busy_ns)} of {what} a step"
    rows = {
        what: busy,
        "": _shares(found.by_category, found.busy_ns),
        " ": _shares(found.by_phase, found.busy_ns),
    }
    if found.tensor_core_share is not None:
        rows["  "] = (
            f"{percent(found.tensor_core_share)} of the time of matrix work ran on Tensor Cores"
        )
    slower = (
        f", which took {significant(found.slowdown)} times as long"
        if found.slowdown is not None
        else ""
    )
    own = f"opening and closing took {duration(found.border_ns)} between steps, reading {duration(found.reading_ns)} on a thread"
    rows["their cost"] = (
        f"{plural(found.steps_left_out, 'step')} left out of the figures{slower}; {own}"
    )
    return "\n".join(
        _fold(f"  {label.strip():<{_LABEL_WIDTH}}{text}", " " * (2 + _LABEL_WIDTH))
        for label, text in rows.items()
        if text
    )


MOST_KERNELS = 5
NAME_WIDTH = 40


def _by_kernel(view: Overview) -> str:
    """The kernels that take most time, and where they stand under the machine's ceilings, as far as that is known."""
    found = view.by_kernel
    if found is None:
        return ""
    shown = found.groups[:MOST_KERNELS]
    columns: dict[str, list[str]] = {
        f"most time of {found.noun}s": [_shortened(group.name) for group in shown],
        "share": [percent(group.share) for group in shown],
        "a step": [_known(group.ns_per_step, duration) for group in shown],
        "calls": [f"{group.calls:,}" for group in shown],
        "bound by": [group.bound or "-" for group in shown],
        "of ceiling": [
            _known(group.ceiling_share, lambda share: percent(share, 0)) for group in shown
        ],
        "Tensor Cores": [
            _known(
                group.tensor_core_share if group.eligible else None, lambda share: percent(share, 0)
            )
            for group in shown
        ],
    }
    told = {title: cells for title, cells in columns.items() if set(cells) != {"-"}}
    rows = [list(told), *map(list, zip(*told.values(), strict=True))]
    left = len(found.groups) - len(shown)
    whose = (
        f" (rank {found.ranks[0]} of {found.ranks_in_all})"
        if len(found.ranks) < found.ranks_in_all
        else ""
    )
    more = f"\n  and {left:,} more{whose}: profkit tui --screen kernels, or --json" if left else ""
    return (
        table(
            rows,
            right=frozenset(
                place for place, title in enumerate(told) if place and title != "bound by"
            ),
        )
        + more
    )


def _shortened(name: str) -> str:
    shown = safe_text(name)
    return shown if len(shown) <= NAME_WIDTH else shown[: NAME_WIDTH - 1] + "…"


def _known(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def _shares(parts: Mapping[str, float], whole: float) -> str:
    shown = list(parts.items())[:MOST_KINDS]
    rest = sum(parts.values()) - sum(value for _, value in shown)
    words = [
        f"{safe_text(name)} {percent(value / whole, 0)}"
        for name, value in [*shown, *[("the rest", rest)] * (len(parts) > MOST_KINDS)]
    ]
    return ", ".join(words) if whole > 0 else ""


def _footer(view: Overview, next_command: str) -> str:
    rows = [
        ("profkit's cost", own_cost_words(view)),
        ("data quality", safe_text("; ".join(view.quality)) or "complete, no rows dropped"),
    ]
    rows += [*source_rows(view), *(("flag", safe_text(flag)) for flag in view.flags)]
    lines = [
        _fold(f"  {label:<{_LABEL_WIDTH}}{text}", " " * (2 + _LABEL_WIDTH)) for label, text in rows
    ]
    copied = {"trace": view.path, "next": next_command}
    return "\n".join(
        [
            *lines,
            *(
                f"  {label:<{_LABEL_WIDTH}}{safe_text(text)}"
                for label, text in copied.items()
                if text
            ),
        ]
    )


_LABEL_WIDTH = 16
MOST_STATED = 4


def source_rows(view: Overview) -> Iterator[tuple[str, str]]:
    """For a run that was made of a log: how its figures are to be read, and what the log itself states."""
    config = view.config
    if "log_of" not in config:
        return
    each = (
        f"every {config.get('steps_per_line')} steps, " if config.get("steps_per_line") != 1 else ""
    )
    yield (
        "log",
        safe_text(
            f"{config['log_of']}: {each}times are means of {config.get('step_times')}, {config.get('sample_unit')} counted of {config.get('samples_counted_of')}"
        ),
    )
    stated = [found for found in config.get("stated") or [] if isinstance(found, dict)]
    for found in stated[-MOST_STATED:]:
        how = f" ({found['how']})" if found.get("how") else ""
        yield (
            "stated",
            safe_text(
                f"{found.get('what')} {found.get('value')} {found.get('unit')}".rstrip()
                + f"{how}, line {found.get('line')}"
            ),
        )
    if len(stated) > MOST_STATED:
        yield "", f"{plural(len(stated) - MOST_STATED, 'more result')} in --json"


def own_cost_words(view: Overview) -> str:
    """What profkit itself took of a step."""
    total = view.own_cost.total_ns
    if total is None:
        return "not measured in this run"
    share = f" ({percent(total / view.step_ns.value, 3)})" if view.step_ns.value > 0 else ""
    counted = f"{duration(view.own_cost.hooks_ns or 0)} in the loop at least, {duration(view.own_cost.writer_ns or 0)} on the writer's thread"
    if view.own_cost.collectors_ns is not None:
        counted += f", {duration(view.own_cost.collectors_ns)} on the collectors'"
    opening = view.own_cost.opening_ns
    once = "" if opening is None else f"{duration(opening)} per rank once, to open its files, and "
    switched = _switched(view.own_cost.switched)
    return f"{once}{duration(total)} per step{share}: {counted}{switched}"


def _switched(found: Estimate | None) -> str:
    if found is None or found.low is None or found.high is None:
        return ""
    return f"; by switching it off for blocks of steps: {duration(found.value)}, 95 % interval {duration(found.low)} to {duration(found.high)}"


def ceilings_table(found: Ceilings) -> str:
    """What `profkit ceilings` prints."""
    rows = [
        [f"matrix product, {name}", f"{significant(rate / 1e12)} TFLOP/s"]
        for name, rate in found.matrix_flops_per_s.items()
    ]
    copies = {
        "copy on the device": found.copy_bytes_per_s,
        **{f"host to device, {name}": rate for name, rate in found.to_device_bytes_per_s.items()},
    }
    rows += [
        [name, f"{byte_size(rate)}/s" if rate else "not measured"]
        for name, rate in {**copies, "disk, not cached": found.disk_read_bytes_per_s}.items()
    ]
    rows.append(
        [
            "JPEG of 500 x 375, one core",
            f"{significant(found.jpeg_images_per_s)} images/s"
            if found.jpeg_images_per_s
            else "not measured: no Pillow",
        ]
    )
    blocks = [
        f"{safe_text(found.device)} · {safe_text(found.library)}",
        table(rows, right=frozenset({1})),
    ]
    for links in found.links:
        sizes = [
            [byte_size(size), f"{byte_size(rate)}/s"]
            for size, rate in zip(links.sizes, links.bus_bytes_per_s, strict=True)
        ]
        blocks.append(
            f"all-reduce over {safe_text(links.backend)}, {links.ranks} ranks\n"
            + table([["message", "bus bandwidth"], *sizes], right=frozenset({0, 1}))
        )
    return "\n\n".join(blocks)


def examination(findings: Sequence[Finding]) -> str:
    """What `profkit doctor` prints: what works, what does not and why, and what would help."""
    width = max(len(finding.name) for finding in findings)
    return "\n".join(line for finding in findings for line in _finding(finding, width))


def _finding(finding: Finding, width: int) -> Iterator[str]:
    indent = " " * (8 + width + 2)
    yield _fold(
        f"{finding.state:<8}{safe_text(finding.name):<{width}}  {safe_text(finding.measures)}",
        indent,
    )
    for label, text in (("", finding.why), ("try: ", finding.help)):
        if text:
            yield textwrap.fill(
                safe_text(label + text),
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )


_STATE_MEANINGS = {
    Integrity.COMPLETE: "the run ended and every row is there",
    Integrity.RUNNING: "the job has not ended; what is there can be read",
    Integrity.ENDED_EARLY: "the run did not end as planned; every row that was written can be read",
    Integrity.TORN: "a part cannot be read; every row before the damage can",
}


def verification(found: Verification) -> str:
    """What `profkit verify` prints: the state, why, and the rows of each table."""
    lines = [f"{found.state.value}: {_STATE_MEANINGS[found.state]}"]
    lines += [_fold("  " + safe_text(reason), " " * 4) for reason in found.reasons]
    rows = list(_table_rows(found))
    if rows:
        lines += [
            "",
            table(
                [["table", "ranks", "rows", "lost", "dropped"], *rows],
                right=frozenset({1, 2, 3, 4}),
            ),
        ]
    return "\n".join(lines)


def _table_rows(found: Verification) -> Iterator[list[str]]:
    by_table = defaultdict(list)
    for check in found.tables:
        by_table[check.table].append(check)
    for name, checks in by_table.items():
        yield [
            name,
            str(len(checks)),
            *(
                f"{sum(column):,}"
                for column in zip(
                    *((check.rows, check.lost, check.dropped) for check in checks), strict=True
                )
            ),
        ]
