"""The wait for input is long in a few steps, and short in all others: as where workers start again at an epoch."""

from __future__ import annotations

import numpy as np

from profkit.analysis.costs import INPUT
from profkit.analysis.estimate import Estimate
from profkit.explain.rules._input import is_crowded_out
from profkit.explain.rules.base import Case, Finding, grew, input_is_hidden
from profkit.text import duration, percent, plural

FAR = 5.0
"""A stall is a wait of more than this many usual ones."""

FEW = 0.25
"""Where more than this share of the steps stalls, the input is slow as such."""

MOST_OF_IT = 0.5
"""The stalls are told where they hold more than this part of what input adds, and input of the gap more than a quarter."""

_REMEDY = "keep workers and their batches over epochs (persistent_workers, or one loader for all epochs), and see which steps stall"


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = ledger.find(INPUT)
    if (
        row is None
        or not grew(ledger.total, ledger)
        or input_is_hidden(ledger)
        or is_crowded_out(case)
        or row.delta.value < ledger.total.delta.value / 4
    ):
        return None
    waits = ledger.target.parts[INPUT] / ledger.target.ranks
    usual = float(np.median(waits))
    stalled = waits > FAR * max(usual, row.base.value * ledger.samples_per_step)
    added = (
        float((waits[stalled] - usual).sum())
        * ledger.target.ranks
        / float(ledger.target.samples.sum())
    )
    if not stalled.any() or stalled.mean() > FEW or added < MOST_OF_IT * row.delta.value:
        return None
    evidence = (
        f"{plural(int(stalled.sum()), 'step')} of {ledger.target.steps:,} wait {duration(float(waits[stalled].mean()))} for input, the others {duration(usual)}; "
        f"these stalls are {percent(added / row.delta.value, 0)} of what input adds"
    )
    return Finding(
        "input_stalls",
        Estimate(added * ledger.samples_per_step),
        added / ledger.total.delta.value,
        evidence,
        _REMEDY,
    )
