"""The weight update is slower out of proportion: it updates parameters one by one."""

from __future__ import annotations

from profkit.explain.ledger import sum_rows
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import Case, Cause, Specific, differs, from_to, grew, in_time
from profkit.text import significant
from profkit.vocab import Phase

MIN_RATIO_TO_NETWORK = 1.3
"""The update must grow by more than this times the network's factor: else all is slower."""

MIN_CALLS_RATIO = 1.2
"""If windows show fewer than this many times the base's calls, the same work takes longer."""

_VARIANTS = ("optimizer_foreach", "optimizer_fused", "optimizer_multi_tensor")
"""The settings that choose how an optimizer updates its parameters."""

_NETWORK = (Phase.FORWARD.value, Phase.BACKWARD.value)
_REMEDY = (
    "the fused or foreach variant of the optimizer (fused=True, foreach=True; "
    "use_multi_tensor=True in Paddle), and gradients set to None"
)


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    row = ledger.find(Phase.OPTIMIZER.value)
    if row is None or not grew(row, ledger):
        return None
    network = sum_rows(ledger, "network", _NETWORK)
    if network.base.value > 0 and row.base.value > 0:
        change = network.target.value / network.base.value
        if row.target.value / row.base.value <= MIN_RATIO_TO_NETWORK * max(1.0, change):
            return None
    seen = ""
    if not has_more_gradients(case) and not differs(case, "parameters_count"):
        seen = _describe_sign(case)
    if not seen:
        return None
    evidence = (
        f"the weight update went from {from_to(row, ledger)} per step, forward and backward "
        f"together from {from_to(network, ledger)}; {seen}"
    )
    return Cause.from_row(
        "optimizer_unfused", row, ledger, evidence, _REMEDY, specific=Specific.OPERATOR
    )


def _describe_sign(case: Case) -> str:
    """Return what shows that parameters are updated one by one, or an empty text."""
    calls = _count_calls(case)
    if calls is not None:
        known, now = calls
        first, then = in_time(case.ledger, known, now)
        words = f"{significant(first)} calls in it became {significant(then)}"
        return words if now >= MIN_CALLS_RATIO * known else ""
    if differs(case, "optimizer"):
        return ""  # another optimizer does other work
    return _describe_variant(case)


def _count_calls(case: Case) -> tuple[float, float] | None:
    """Return the calls in the weight update of both runs, or `None` if they were not captured."""
    before, after = case.before.windows, case.after.windows
    if before is None or after is None:
        return None
    known = before.calls_by_phase.get(Phase.OPTIMIZER.value)
    calls = after.calls_by_phase.get(Phase.OPTIMIZER.value)
    return (known, calls) if known and calls else None


def _describe_variant(case: Case) -> str:
    """Return the setting by which the slower run updates one parameter after the other."""
    for name in _VARIANTS:
        quick, slow = (str(run.config.get(name, "")) for run in (case.base, case.target))
        if quick and slow and quick != slow and (slow == "False" or quick == "True"):
            first, then = in_time(case.ledger, quick, slow)
            return f"{name} went from {first} to {then}"
    return ""


def has_more_gradients(case: Case) -> bool:
    """Return true if more gradients are exchanged, so that more parameters are updated."""
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None:
        return False
    known = before.buckets * before.message_bytes
    return after.buckets * after.message_bytes > POLICY.same_bytes_ratio * known
