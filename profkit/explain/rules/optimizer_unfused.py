"""The weight update takes longer, out of proportion with the rest of the step: it goes through the parameters one by one."""

from __future__ import annotations

from profkit.explain.ledger import Ledger, Row, sum_rows
from profkit.explain.rules.base import Case, Finding, all_of, cost, from_to, grew, share_of_gap
from profkit.text import significant
from profkit.vocab import Phase

OUT_OF_PROPORTION = 1.3
"""The update grows by this many times the factor by which forward and backward do: else the whole step is slower."""

FEWER = 1.2
"""Where windows show its operators, they are this many times the base's: else the same work takes longer."""

_NETWORK = (Phase.FORWARD.value, Phase.BACKWARD.value)
_REMEDY = "the fused or foreach variant of the optimizer (fused=True, foreach=True; use_multi_tensor=True in Paddle), and gradients set to None"


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    row = ledger.find(Phase.OPTIMIZER.value)
    if row is None or not grew(row, ledger) or not _stands_out(row, ledger):
        return None
    before, after = (
        each.calls_by_phase.get(Phase.OPTIMIZER.value) if each else None
        for each in (case.before.windows, case.after.windows)
    )
    if before and after and after < FEWER * before:
        return None
    seen = (
        f"{significant(before)} calls in it became {significant(after)}"
        if before and after
        else "no kernels were captured (--kernels) that would show its calls"
    )
    evidence = f"the weight update went from {from_to(row, ledger)} a step, the network did not change as much; {seen}"
    return Finding(
        "optimizer_unfused",
        cost(row, ledger),
        share_of_gap(row, ledger),
        evidence,
        _REMEDY,
        takes=all_of("launch_bound"),
    )


def _stands_out(row: Row, ledger: Ledger) -> bool:
    network = sum_rows(ledger, "network", _NETWORK)
    if not (network.base.value > 0 and row.base.value > 0):
        return True
    return row.target.value / row.base.value > OUT_OF_PROPORTION * max(
        1.0, network.target.value / network.base.value
    )
