"""The weight update is slower out of proportion: it updates parameters one by one."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.rules.base import Case, Cause, from_to, grew, in_time
from profkit.explain.rules.tiny_buckets import MAX_BYTES_RATIO
from profkit.text import significant
from profkit.vocab import Phase

MIN_RATIO_TO_NETWORK = 1.3
"""The update must grow by more than this times the network's factor: else all is slower."""

MIN_CALLS_RATIO = 1.2
"""If windows show fewer than this many times the base's calls, the same work takes longer."""

MAX_NETWORK_CHANGE = 1.5
"""If the network's time changed by more, another model is likelier, unless calls were counted."""

_NETWORK = (Phase.FORWARD.value, Phase.BACKWARD.value)
EXPLAINS = ("launch_bound",)
_REMEDY = (
    "the fused or foreach variant of the optimizer (fused=True, foreach=True; "
    "use_multi_tensor=True in Paddle), and gradients set to None"
)


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    row = ledger.find(Phase.OPTIMIZER.value)
    if row is None or not grew(row, ledger):
        return None
    network, change = sum_rows(ledger, "network", _NETWORK), 1.0
    if network.base.value > 0 and row.base.value > 0:
        change = network.target.value / network.base.value
        if row.target.value / row.base.value <= MIN_RATIO_TO_NETWORK * max(1.0, change):
            return None
    if has_more_gradients(case):
        return None
    seen = ""
    before, after = case.before.windows, case.after.windows
    if before is not None and after is not None:
        known = before.calls_by_phase.get(Phase.OPTIMIZER.value)
        calls = after.calls_by_phase.get(Phase.OPTIMIZER.value)
        if known and calls:
            if calls < MIN_CALLS_RATIO * known:
                return None
            was, now = in_time(ledger, known, calls)
            seen = f"{significant(was)} calls in it became {significant(now)}"
    if not seen:
        if not 1 / MAX_NETWORK_CHANGE <= change <= MAX_NETWORK_CHANGE:
            return None
        seen = "no kernels were captured (--kernels) that would show its calls"
    evidence = (
        f"the weight update went from {from_to(row, ledger)} per step, forward and backward "
        f"together from {from_to(network, ledger)}; {seen}"
    )
    return Cause.from_row("optimizer_unfused", row, ledger, evidence, _REMEDY, explains=EXPLAINS)


def has_more_gradients(case: Case) -> bool:
    """Return true if more gradients are exchanged, so that more parameters are updated."""
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None:
        return False
    known = before.buckets * before.message_bytes
    return after.buckets * after.message_bytes > MAX_BYTES_RATIO * known
