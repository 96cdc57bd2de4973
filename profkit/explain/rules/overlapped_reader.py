"""The wait for batches looks long and costs nothing: the device still worked meanwhile."""

from __future__ import annotations

from profkit.explain.rules.base import Case, Cause, from_to, input_is_hidden
from profkit.frame.costs import DATA


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    row = ledger.find(DATA)
    if row is None or not input_is_hidden(case):
        return None
    evidence = (
        f"the host's wait for data went from {from_to(row, ledger)} per step, the step itself "
        f"from {from_to(ledger.total, ledger)}: reader time overlaps with the device's work, no "
        "throughput is lost to it"
    )
    return Cause("overlapped_reader", None, None, evidence)
