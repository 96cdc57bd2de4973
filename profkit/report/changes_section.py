"""The section about changes of the step time while a run lasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.analysis.change_words import say_change, say_context
from profkit.analysis.overview import Overview
from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.show.document import Column, Section, Table, data_columns, labelled
from profkit.show.figures import MS
from profkit.text import plural

MOST_ROWS = 10

_ALIKE = 0.3
"""Bursts are alike if both of their levels differ by at most this share of the change."""

_DAY_NS = 86_400_000_000_000

_COLUMNS = (
    *data_columns("kind", "first_step", "last_step", "clock", "machine", every_steps="every"),
    *data_columns(change_ratio="change", samples_per_step="samples", late_rank="late"),
    *data_columns(unit=MS, step_ms_before="before_ns", step_ms_after="after_ns"),
    Column("phases_ms", None, lambda each: dict(each.phases), MS),
    Column("unix_s", None, lambda each: None if each.unix_ns is None else each.unix_ns / 1e9),
)


def changes_section(view: Overview) -> Iterator[Section]:
    """Yield a line for each change; nothing if the step time did not change."""
    found = view.changes
    if not found:
        yield Section(key="changes", table=Table(_COLUMNS, ()))
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
    title, table = "Changes during the run", labelled(rows)
    first = Section(title, table=labelled(rows[:1]), kept=True)
    brief = Section(title, tuple(notes), table=table, brief=first, kept=True)
    yield Section(title, tuple(notes), table=table, brief=brief)
    yield Section(key="changes", table=Table(_COLUMNS, found))


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
