"""Figures of a matrix that contradict each other, or that cannot be compared as printed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Final

from profkit.analysis.matrix import Cell
from profkit.analysis.published import UNNAMED
from profkit.bench.timings import groups_of
from profkit.text import percent, plural, significant

TOLERANCE: Final = 0.05
"""Figures that differ by less than this agree: no benchmark repeats itself much better."""

_table_of: Final = attrgetter("workload", "framework", "device", "source")
"""Return the published table that a cell is part of."""

_DIGITS: Final = 4
"""The significant digits of a figure in a sentence."""


@dataclass(frozen=True)
class Contradiction:
    """Figures that cannot be true together, or say less than they seem to. `kind` is stable."""

    kind: str
    cells: tuple[Cell, ...]
    words: str


def find_contradictions(cells: Sequence[Cell]) -> tuple[Contradiction, ...]:
    """Return all contradictions of published cells or our own, check by check."""
    found: list[Contradiction] = []
    for check in CHECKS:
        found += check(cells)
    return tuple(found)


def check_speed_ups(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Compare a printed speed-up with the printed throughputs that it is made of."""
    for cell in cells:
        first = _first_of_its_row(cell, cells)
        if cell.speed_up is None or first is None:
            continue
        ratio = cell.throughput.value / first.throughput.value
        exponent = Decimal(repr(cell.speed_up)).normalize().as_tuple().exponent
        half_digit = 0.5 * 10.0 ** min(0, int(exponent))
        if abs(ratio - cell.speed_up) > half_digit:
            words = (
                f"the printed speed-up is {cell.speed_up:g}, but the throughputs {_figure(first)} "
                f"and {_figure(cell)} give {significant(ratio)}"
            )
            yield Contradiction("speed-up", (first, cell), words)
        elif cell.setting.batch_size != first.setting.batch_size:
            words = (
                f"the speed-up {cell.speed_up:g} compares a batch of {cell.setting.batch_size} per "
                f"GPU with one of {first.setting.batch_size}"
            )
            yield Contradiction("speed-up of unlike batches", (first, cell), words)


def _first_of_its_row(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """Return the cell of one GPU in the same table; of the same batch, if there is one."""
    if not cell.measured:
        return None
    first = None
    for each in cells:
        if (
            each.setting.gpus == 1
            and each.measured
            and _table_of(each) == _table_of(cell)
            and each.setting.mixed == cell.setting.mixed
        ):
            if each.setting.batch_size == cell.setting.batch_size:
                return each
            first = first or each
    return first


def check_samples_in_time(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Compare throughput x time with the samples that were trained on in that time."""
    for cell in cells:
        if not cell.measured or cell.time_to_train_s is None or cell.samples_trained is None:
            continue
        ratio = cell.throughput.value * cell.time_to_train_s / cell.samples_trained
        if abs(ratio - 1) <= TOLERANCE:
            continue
        reason = "more was trained on than the printed speed allows"
        if ratio > 1:
            reason = (
                f"{percent(1 - 1 / ratio, 0)} of the time was not spent at the printed speed "
                "(evaluation, start-up), or the figure is too high"
            )
        whole = cell.samples_trained / cell.time_to_train_s
        words = (
            f"{_figure(cell)} x {significant(cell.time_to_train_s, _DIGITS)} s is "
            f"{significant(ratio)} times the {cell.samples_trained:,} samples trained on: "
            f"over the whole time it was {significant(whole)}; {reason}"
        )
        yield Contradiction("throughput x time", (cell,), words)


def check_statistics(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Find figures of one table that are not the same statistic."""
    for group in groups_of(cells, _table_of):
        named = {}
        for cell in group:
            if cell.measured and cell.statistic not in {"", UNNAMED}:
                named[cell.statistic] = cell
        if len(named) > 1:
            parts = []
            for statistic, cell in named.items():
                parts.append(f"{_figure(cell)} ({cell.setting.precision}) is the {statistic}")
            words = f"one table, different statistics: {'; '.join(parts)}"
            yield Contradiction("statistic", tuple(named.values()), words)


def check_batches(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Find one figure that is printed for two batch sizes."""
    same = attrgetter(
        "workload", "framework", "device", "setting.gpus", "setting.mixed", "throughput.value"
    )
    for group in groups_of(cells, same):
        batches = {cell.setting.batch_size for cell in group}
        if len(batches) > 1 and group[0].measured:
            places = [f"batch {cell.setting.batch_size} in {cell.source}" for cell in group]
            words = (
                f"{_figure(group[0])} on {plural(group[0].setting.gpus, 'GPU')} is printed for "
                f"{' and '.join(dict.fromkeys(places))}"
            )
            yield Contradiction("one figure, two batches", tuple(group), words)


def check_sources(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Find a configuration for which two sources print different figures."""
    for group in groups_of(
        filter(attrgetter("measured"), cells),
        attrgetter("workload", "framework", "device", "setting"),
    ):
        for one, other in itertools.combinations(group, 2):
            ratio = one.throughput.value / other.throughput.value
            if one.source != other.source and abs(ratio - 1) > TOLERANCE:
                words = (
                    f"{_name(one)}: {_figure(one)} in {one.source} is {percent(ratio, 0)} of "
                    f"{_figure(other)} in {other.source}"
                )
                yield Contradiction("two sources", (one, other), words)


def check_linearity(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Find GPUs that do more each than fewer of them did."""
    same = attrgetter("statistic", "setting.precision", "setting.batch_size", "setting.loader")
    for group in groups_of(
        filter(attrgetter("measured"), cells), lambda cell: (_table_of(cell), same(cell))
    ):
        ordered = sorted(group, key=attrgetter("setting.gpus"))
        for fewer, more in itertools.pairwise(ordered):
            ratio = fewer.sample_ns.value / more.sample_ns.value
            low, high = fewer.sample_ns.low, more.sample_ns.high
            overlap = low is not None and high is not None and low <= high
            if ratio > 1 + TOLERANCE and not overlap:
                words = (
                    f"{_name(more)}: {_figure(fewer)} on {fewer.setting.gpus} and {_figure(more)} "
                    f"on {more.setting.gpus}: an efficiency of {percent(ratio, 0)} is "
                    "impossible, because more of them make none faster"
                )
                yield Contradiction("more than linear", (fewer, more), words)


def check_loaders(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Find a loader that the text names and the logs do not show."""
    for cell in cells:
        if cell.loader_said and cell.loader_said != cell.setting.loader and cell.measured:
            words = (
                f"{_name(cell)}: the text says {cell.loader_said}, "
                f"its logs say {cell.setting.loader}"
            )
            yield Contradiction("loader", (cell,), words)


CHECKS: Final = (
    check_speed_ups,
    check_samples_in_time,
    check_statistics,
    check_batches,
    check_sources,
    check_linearity,
    check_loaders,
)


def _figure(cell: Cell) -> str:
    """Return a throughput as it was printed; figures of ours have intervals and are rounded."""
    if cell.throughput.judged:
        return f"{significant(cell.throughput.value, _DIGITS)} {cell.unit}"
    return f"{cell.throughput.value:,.10g} {cell.unit}"


def _name(cell: Cell) -> str:
    setting = cell.setting
    return (
        f"{cell.framework} on {setting.gpus} x {cell.device}, {setting.precision}, "
        f"batch {setting.batch_size}"
    )
