"""The section about changes of the step time while a run lasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from profkit.analysis.change_words import say_change, say_context
from profkit.analysis.estimate import Estimate
from profkit.analysis.overview import Overview
from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.report.document import Grid, Section
from profkit.text import plural

MOST_ROWS = 10

_ALIKE = 0.3
"""Bursts are alike if both of their levels differ by at most this share of the change."""

_DAY_NS = 86_400_000_000_000


def changes_section(view: Overview) -> Iterator[Section]:
    """Yield a line for each change; nothing if the step time did not change."""
    found = view.changes
    if not found:
        return
    times = [each.unix_ns for each in found if each.unix_ns is not None]
    with_date = bool(times) and max(times) - min(times) > _DAY_NS
    rows, groups = [], group_alike(found)
    for each, *others in groups[:MOST_ROWS]:
        rows.append((each.kind.value, say_change(each, with_date=with_date)))
        rows += [("", line) for line in say_context(each)]
        if others:
            rows.append(("", say_others(others)))
    notes = []
    if more := sum(map(len, groups[MOST_ROWS:])):
        notes.append(f"{plural(more, 'more change')} in --json")
    step = next((each for each in found if each.kind is not ChangeKind.PERIODIC), None)
    if step is not None:
        notes.append(f"'profkit explain RUN --at {step.first_step}' compares before and after")
    yield Section("Changes during the run", tuple(notes), grid=Grid(("", ""), tuple(rows)))


def group_alike(changes: Sequence[RunChange]) -> list[list[RunChange]]:
    """Return the changes in their order, each with the later bursts between the same levels.

    A job that its neighbours slow down at times would have a line for each time.
    """
    groups: list[list[RunChange]] = []
    for change in changes:
        group = next((each for each in groups if _are_alike(each[0], change)), None)
        if group is None:
            groups.append([change])
        else:
            group.append(change)
    return groups


def _are_alike(first: RunChange, other: RunChange) -> bool:
    if first.kind is not ChangeKind.BURST or other.kind is not ChangeKind.BURST:
        return False
    gap = abs(first.after_ns.value - first.before_ns.value)
    before = abs(other.before_ns.value - first.before_ns.value)
    after = abs(other.after_ns.value - first.after_ns.value)
    return max(before, after) <= _ALIKE * gap


def say_others(bursts: Sequence[RunChange]) -> str:
    """Return how many bursts like the first there are, how long they last, and where they are."""
    lengths, last = [], 0
    for each in bursts:
        end = each.first_step if each.last_step is None else each.last_step
        lengths.append(end - each.first_step + 1)
        last = max(last, end)
    shortest, longest = min(lengths), max(lengths)
    steps = f"{shortest:,} to {longest:,} steps" if shortest < longest else plural(longest, "step")
    return (
        f"{plural(len(bursts), 'more burst')} to this level, of {steps}, between step "
        f"{bursts[0].first_step:,} and step {last:,}"
    )


def as_json(view: Overview) -> list[dict[str, Any]]:
    rows = []
    for each in view.changes:
        rows.append(
            {
                "kind": each.kind.value,
                "first_step": each.first_step,
                "last_step": each.last_step,
                "every_steps": each.every,
                "unix_s": None if each.unix_ns is None else each.unix_ns / 1e9,
                "step_ms_before": _estimate(each.before_ns, 1e-6),
                "step_ms_after": _estimate(each.after_ns, 1e-6),
                "change_ratio": _estimate(each.change, 1.0),
                "phases_ms": {name: ns * 1e-6 for name, ns in each.phases},
                "samples_per_step": each.samples,
                "late_rank": each.late and each.late._asdict(),
                "clock": each.clock and each.clock._asdict(),
                "machine": each.machine and each.machine._asdict(),
            }
        )
    return rows


def _estimate(estimate: Estimate, scale: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {"value": estimate.value * scale}
    for name, end in (("low", estimate.low), ("high", estimate.high)):
        found[name] = None if end is None else end * scale
    return found
