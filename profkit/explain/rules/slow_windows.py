"""Some lines of a log are much slower, such as those in which an epoch begins."""

from __future__ import annotations

from collections.abc import Mapping

from profkit.analysis.estimate import Estimate
from profkit.analysis.slow_lines import MOSTLY, describe_slow_lines, slow_lines
from profkit.explain.rules.base import Case, Cause, here, is_material, other_side, share_of
from profkit.text import duration

EXPLAINS = ("input_bound", "input_stalls", "exposed_communication")

_KEEP_WORKERS = (
    "keep workers and their batches over epochs (persistent_workers, or one loader for all "
    "epochs), or make epochs longer"
)
_LOOK = (
    "record the job itself (profkit run): its phases show what these steps do, such as saving, "
    "collecting garbage, or waiting for a rank whose batch is late"
)


def find(case: Case) -> Cause | None:
    """Compare what slow lines add to the average step of both logs."""
    after = slow_lines(case.target.config)
    if after is None:
        return None
    before = slow_lines(case.base.config) or {}
    cost_ns = _added(case, "excess_ns", before, after)
    if not is_material(cost_ns, case.ledger):
        return None
    data_ns = min(max(0.0, _added(case, "excess_data_ns", before, after)), cost_ns)
    in_base = f"no line of the {other_side(case.ledger)} stands out"
    if before:
        added = duration(before["excess_ns"])
        in_base = f"in the {other_side(case.ledger)} such lines add {added} per step"
    evidence = f"{here(case.ledger)}{describe_slow_lines(after)}; {in_base}"
    remedy = _LOOK
    if data_ns > MOSTLY * cost_ns:
        remedy = _KEEP_WORKERS
    takes = dict(zip(EXPLAINS, (data_ns, data_ns, cost_ns - data_ns), strict=True))
    share = share_of(cost_ns, case.ledger)
    return Cause("slow_windows", Estimate(cost_ns), share, evidence, remedy, takes=takes)


def _added(case: Case, name: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the growth of a figure of both logs, in ns per step of the base's batch."""
    base_factor = case.ledger.batch_factor(case.before.step_samples)
    target_factor = case.ledger.batch_factor(case.after.step_samples)
    return after.get(name, 0.0) * target_factor - before.get(name, 0.0) * base_factor
