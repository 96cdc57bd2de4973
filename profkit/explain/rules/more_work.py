"""A sample is more work by its elements, the model's parameters, or a smaller batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from profkit.analysis.config_join import COMPUTE, SURE_ERRORS
from profkit.explain.cells import sum_of
from profkit.explain.evidence import Evidence, step_elements
from profkit.explain.ledger import Row, sum_rows
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    cost,
    from_to,
    grew,
    in_time,
    share_of,
)
from profkit.frame.estimate import Estimate, scale
from profkit.frame.phases import UNKNOWN
from profkit.text import amount, significant
from profkit.trace import RunManifest
from profkit.vocab import Phase


class Fact(NamedTuple):
    """A number that a row's time goes with."""

    words: str
    before: float
    after: float
    rows: Sequence[str]
    remedy: str

    @property
    def ratio(self) -> float:
        return self.after / self.before


def find(case: Case) -> Cause | None:
    """Take the number that explains most of what its rows grew by."""
    found = []
    for fact in _facts(case):
        names = [name for name in fact.rows if _grows(case, case.ledger.find(name))]
        row = sum_rows(case.ledger, " and ".join(names), names)
        growth = _growth(case, row)
        if not names or growth is None:
            continue
        most_ns = (fact.ratio**POLICY.most_power - 1) * max(row.base.value, 0.0)
        price = scale(growth, case.ledger.samples_per_step)
        price = scale(price, min(1.0, most_ns / growth.value))
        found.append((price.value, fact, row, price))
    batch = _smaller_batch(case)
    if batch is not None:
        found.append((batch[2].value, *batch))
    if not found:
        return None
    _, fact, row, price = max(found, key=lambda each: each[0])
    first, then = in_time(case.ledger, fact.before, fact.after)
    evidence = (
        f"{fact.words} went from {amount(first)} to {amount(then)}, "
        f"{significant(then / first, 2)} times as many; {row.name} went from "
        f"{from_to(row, case.ledger)} per step"
    )
    return Cause(
        "more_work",
        price,
        share_of(price.value, case.ledger),
        evidence,
        fact.remedy,
        detail=fact.words,
        specific=Specific.COUNT,
        rows=row.sums,
    )


def _grows(case: Case, row: Row | None) -> bool:
    return row is not None and row.delta.value > POLICY.shown_share * case.ledger.total.base.value


def _growth(case: Case, row: Row) -> Estimate | None:
    """Return by how much rows grew: by their means, or by cells if only some steps are longer."""
    if grew(row, case.ledger):
        return row.delta
    cells = [cell for cell in case.cells.told(gains=False) if cell.row in row.sums]
    return sum_of(cells) if cells else None


def _facts(case: Case) -> Iterator[Fact]:
    """Yield the numbers that both runs state and that are larger in the target."""
    of_data = (*COMPUTE[:2], Phase.H2D.value)
    of_model = (*COMPUTE, Phase.ALLREDUCE.value, UNKNOWN)
    (was, error), (is_now, other) = map(_elements, (case.before, case.after))
    is_sure = is_now - was > SURE_ERRORS * math.hypot(error, other)
    if was and is_now >= POLICY.more_ratio * was and is_sure:
        remedy = "compare what a sample is: crops, lengths, padding, resolution"
        yield Fact("elements of a sample", was, is_now, of_data, remedy)
    known, now = (_number(run, "parameters_count") for run in (case.base, case.target))
    if known and now and now >= POLICY.more_ratio * known:
        yield Fact("parameters", known, now, of_model, "compare the models: layers and widths")


def _number(run: RunManifest, name: str) -> float:
    value = run.config.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _elements(side: Evidence) -> tuple[float, float]:
    """Return the elements of a sample by the run's batches, and the error; 0 if not known."""
    run, readings = side.trace.manifest, [*side.figure(step_elements).values()]
    if readings and side.step_samples:
        all_ranks = np.concatenate(readings)
        error = float(all_ranks.std()) / math.sqrt(len(all_ranks)) / side.step_samples
        return float(all_ranks.mean()) / side.step_samples, error
    mean, error = _number(run, "batch_elements"), _number(run, "batch_elements_error")
    if mean and side.step_samples:
        return mean / side.step_samples, error / side.step_samples
    if str(run.config.get("batch_shapes_distinct", "1")) not in {"1", "2"}:
        return 0.0, 0.0  # they vary by chance
    total = 1.0
    first = str(run.config.get("batch_shapes", "")).split(",", maxsplit=1)[0]
    for part in first.split("x")[1:]:
        if not part.strip().isdigit():
            return 0.0, 0.0
        total *= int(part)
    return (total if "x" in first else 0.0), 0.0


def _smaller_batch(case: Case) -> tuple[Fact, Row, Estimate] | None:
    """Return a smaller batch with the rows in which a step takes no longer than it did.

    What a step takes whatever its batch is counts for more per sample in a smaller one.
    """
    ledger = case.ledger
    known, now = case.before.step_samples, case.after.step_samples
    if not ledger.per_sample or not known or now * POLICY.more_ratio > known:
        return None
    names = []
    for row in ledger.rows:
        is_as_long = row.target.value * now <= row.base.value * known * (1 + POLICY.material_share)
        if is_as_long and _grows(case, row):
            names.append(row.name)
    row = sum_rows(ledger, " and ".join(names), names)
    if not names or not grew(row, ledger):
        return None
    words = "steps for as many samples"
    remedy = "take larger batches: each step takes some time whatever its batch is"
    return Fact(words, 1.0, known / now, names, remedy), row, cost(row, ledger)
