"""Which figures of a matrix contradict each other, or cannot be compared as they are printed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from profkit.analysis.estimate import Estimate
from profkit.analysis.matrix import Cell
from profkit.analysis.published import UNNAMED
from profkit.text import percent, plural, significant

TOLERANCE: Final = 0.05
"""Figures of one thing that differ by less than this are taken to agree: no benchmark repeats itself much better."""

_DIGITS: Final = 4


@dataclass(frozen=True)
class Contradiction:
    """What cannot be true together, or says less than it seems to. `kind` is stable."""

    kind: str
    cells: tuple[Cell, ...]
    words: str


def find_contradictions(cells: Sequence[Cell]) -> tuple[Contradiction, ...]:
    """All of them, check by check; the cells may be published ones or our own."""
    return tuple(found for check in _CHECKS for found in check(cells))


def _speed_ups(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """A printed speed-up against the printed throughputs that it is made of."""
    for cell in cells:
        first = _first_of_its_row(cell, cells)
        if cell.speed_up is None or first is None:
            continue
        ratio = cell.throughput.value / first.throughput.value
        if abs(ratio - cell.speed_up) > _rounding(cell.speed_up):
            words = f"speed-up {cell.speed_up:g} is printed, and the throughputs {_figure(first)} and {_figure(cell)} give {significant(ratio)}"
            yield Contradiction("speed-up", (first, cell), words)
        elif cell.setting.batch_size != first.setting.batch_size:
            words = f"the speed-up {cell.speed_up:g} compares a batch of {cell.setting.batch_size} a GPU with one of {first.setting.batch_size}"
            yield Contradiction("speed-up of unlike batches", (first, cell), words)


def _first_of_its_row(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The cell of one GPU in the same table; of the same batch, if there is one."""
    alike = [
        each
        for each in cells
        if each.setting.gpus == 1
        and each.measured
        and _table_of(each) == _table_of(cell)
        and each.setting.mixed == cell.setting.mixed
    ]
    return (
        min(
            alike, key=lambda each: each.setting.batch_size != cell.setting.batch_size, default=None
        )
        if cell.measured
        else None
    )


def _table_of(cell: Cell) -> tuple[str, str, str, str]:
    return cell.workload, cell.framework, cell.device, cell.source


def _rounding(printed: float) -> float:
    """Half of the printed figure's last digit."""
    exponent = Decimal(repr(printed)).normalize().as_tuple().exponent
    return 0.5 * 10.0 ** min(0, int(exponent))


def _samples_in_time(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Throughput x time against the samples that were trained on in it."""
    for cell in cells:
        if not cell.measured or cell.time_to_train_s is None or cell.samples_trained is None:
            continue
        ratio = cell.throughput.value * cell.time_to_train_s / cell.samples_trained
        if abs(ratio - 1) > TOLERANCE:
            whole = cell.samples_trained / cell.time_to_train_s
            words = (
                f"{_figure(cell)} x {significant(cell.time_to_train_s, _DIGITS)} s is {significant(ratio)} times the {cell.samples_trained:,} samples trained on: "
                f"over the whole time it was {significant(whole)}; {_where_the_rest_went(ratio)}"
            )
            yield Contradiction("throughput x time", (cell,), words)


def _where_the_rest_went(ratio: float) -> str:
    if ratio > 1:
        return f"{percent(1 - 1 / ratio, 0)} of the time was not spent at the printed speed (evaluation, start-up), or the figure is too high"
    return "more was trained on than the printed speed allows"


def _statistics(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """Figures that stand in one table and are not the same statistic."""
    for group in _groups(
        cells, lambda cell: (cell.workload, cell.framework, cell.device, cell.source)
    ):
        named = {
            cell.statistic: cell
            for cell in group
            if cell.measured and cell.statistic not in {"", UNNAMED}
        }
        if len(named) > 1:
            parts = "; ".join(
                f"{_figure(cell)} ({cell.setting.precision}) is the {statistic}"
                for statistic, cell in named.items()
            )
            yield Contradiction(
                "statistic", tuple(named.values()), f"one table, different statistics: {parts}"
            )


def _two_batches(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """One figure that is printed for two batch sizes."""
    for group in _groups(
        cells,
        lambda cell: (
            cell.workload,
            cell.framework,
            cell.device,
            cell.setting.gpus,
            cell.setting.mixed,
            cell.throughput.value,
        ),
    ):
        batches = sorted({cell.setting.batch_size for cell in group})
        if len(batches) > 1 and group[0].measured:
            places = " and ".join(
                dict.fromkeys(f"batch {cell.setting.batch_size} in {cell.source}" for cell in group)
            )
            yield Contradiction(
                "one figure, two batches",
                tuple(group),
                f"{_figure(group[0])} on {plural(group[0].setting.gpus, 'GPU')} stands for {places}",
            )


def _two_sources(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """One configuration of which two sources print different figures."""
    measured = [cell for cell in cells if cell.measured]
    for group in _groups(
        measured, lambda cell: (cell.workload, cell.framework, cell.device, cell.setting)
    ):
        for one, other in itertools.combinations(group, 2):
            ratio = one.throughput.value / other.throughput.value
            if one.source != other.source and abs(ratio - 1) > TOLERANCE:
                words = f"{_figure(one)} in {one.source} is {percent(ratio, 0)} of {_figure(other)} in {other.source}"
                yield Contradiction("two sources", (one, other), f"{_name(one)}: {words}")


def _superlinear(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """More GPUs that do more each than fewer did."""
    measured = [cell for cell in cells if cell.measured]
    for group in _groups(
        measured,
        lambda cell: (
            _table_of(cell),
            cell.statistic,
            cell.setting.precision,
            cell.setting.batch_size,
            cell.setting.loader,
        ),
    ):
        ordered = sorted(group, key=lambda cell: cell.setting.gpus)
        for fewer, more in itertools.pairwise(ordered):
            ratio = fewer.sample_ns.value / more.sample_ns.value
            if ratio > 1 + TOLERANCE and not _overlap(fewer.sample_ns, more.sample_ns):
                words = f"{_figure(fewer)} on {plural(fewer.setting.gpus, 'GPU')} and {_figure(more)} on {more.setting.gpus}: each GPU would do {percent(ratio, 0)} of what it did"
                yield Contradiction("more than linear", (fewer, more), f"{_name(more)}: {words}")


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Whether their intervals leave it open which is larger; figures without intervals are taken as they are."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _loaders(cells: Sequence[Cell]) -> Iterator[Contradiction]:
    """A loader that the text names and the logs do not show."""
    for cell in cells:
        if cell.loader_said and cell.loader_said != cell.setting.loader and cell.measured:
            words = f"{_name(cell)}: the text says {cell.loader_said}, its logs say {cell.setting.loader}"
            yield Contradiction("loader", (cell,), words)


_CHECKS: Final = (
    _speed_ups,
    _samples_in_time,
    _statistics,
    _two_batches,
    _two_sources,
    _superlinear,
    _loaders,
)


def _groups(cells: Iterable[Cell], key: Callable[[Cell], object]) -> Iterator[list[Cell]]:
    found: dict[object, list[Cell]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    yield from found.values()


def _figure(cell: Cell) -> str:
    """As it was printed; a figure of ours has an interval, and no more digits than that deserves."""
    shown = (
        significant(cell.throughput.value, _DIGITS)
        if cell.throughput.judged
        else f"{cell.throughput.value:,.10g}"
    )
    return f"{shown} {cell.unit}"


def _name(cell: Cell) -> str:
    setting = cell.setting
    return f"{cell.framework} on {setting.gpus} x {cell.device}, {setting.precision}, batch {setting.batch_size}"
