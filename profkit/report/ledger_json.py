"""The ledger of two runs, and the scaling of more, as JSON: units are in the keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from profkit.analysis.apart import Apart
from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import Estimate
from profkit.explain.compared import Compared, Pair
from profkit.explain.coverage import Coverage
from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Row, why_not
from profkit.explain.meeting import Meeting
from profkit.explain.rules.base import Cause
from profkit.explain.scaling import ScalingRow
from profkit.explain.verdict import Between
from profkit.report import view_json
from profkit.report.code_json import changes_json


def explained(view: Explained, judgements: Sequence[Judgement] = ()) -> dict[str, Any]:
    """Return what `profkit explain BASE TARGET --json` prints.

    Times are ns per sample and rank unless the key says otherwise.
    """
    ledger = view.ledger
    differences = []
    for each in ledger.differences:
        row = {"name": each.name, "base": each.base, "target": each.target}
        differences.append(row | {"can_affect": each.rows})
    gates = []
    for judged in judgements:
        gate = {"gate": str(judged.gate), "outcome": judged.outcome.value, "why": judged.why}
        gates.append(gate)
    return {
        "base": view.case.base_name,
        "target": view.case.target_name,
        "verdict": ledger.verdict.value,
        "why_not_judged": why_not(ledger) or None,
        "between_runs": between_json(ledger.between),
        "rows_of_machine": sorted(ledger.unsure_rows),
        "phases_clock": {"base": ledger.base.clock.value, "target": ledger.target.clock.value},
        "time_is_per": f"{'sample' if ledger.per_sample else 'step'} and rank",
        "change_share": estimate(ledger.change),
        "efficiency_share": estimate(ledger.efficiency),
        "samples_per_step_and_gpu": ledger.samples_per_step if ledger.per_sample else None,
        "interval_confidence": ledger.total.delta.level,
        "total_ns": row_json(ledger.total),
        "largest_row": ledger.largest.name if ledger.largest else None,
        "rows_ns": list(map(row_json, ledger.rows)),
        "overlapped_ns": list(map(row_json, ledger.beside)),
        "profkit_in_all_ns": row_json(ledger.switched) if ledger.switched else None,
        "lines": changes_json(view.lines),
        "kernels": kernels(view.kernels),
        "exchange_by_dimension_ns": [row_json(row) for row in view.exchange.rows()]
        if view.exchange
        else None,
        "steps": {"base": steps_used(ledger.base), "target": steps_used(ledger.target)},
        "findings": list(map(cause_json, view.causes)),
        "explained": coverage_json(view.coverage),
        "caveats": list(view.caveats),
        "differences": differences,
        "nothing_else_differs": not differences and any(view.recorded),
        "settings_recorded": view.recorded._asdict(),
        "gates": gates,
    }


def between_json(found: Between | None) -> dict[str, Any] | None:
    """Return the noise between runs, or null if no change had to be compared with it."""
    if found is None:
        return None
    return {
        "known_from": found.basis.value,
        "machine_may_have_changed_ns": found.machine_ns,
        "carried_by": list(found.carried_by),
        "doubt": found.doubt or None,
    }


def estimate(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}


def row_json(row: Row) -> dict[str, Any]:
    """Return the figures of a row; `rows` is there only if it opens into finer ones."""
    figures: dict[str, Any] = {
        "name": row.name,
        "base": estimate(row.base),
        "target": estimate(row.target),
        "difference": estimate(row.delta),
    }
    if row.inside:
        figures["rows"] = list(map(row_json, row.inside))
    return figures


def steps_used(costs: RunCosts) -> dict[str, Any]:
    return {
        "used": costs.steps,
        "needed": costs.steps_needed,
        "apart": steps_apart(costs.apart),
        "ranks_without_device_times": list(costs.unclocked),
        "exchange_timed": costs.exchange_timed,
    }


def steps_apart(apart: Iterable[Apart]) -> list[dict[str, Any]]:
    """Return the steps that are excluded for each reason, and what they would add."""
    rows = []
    for each in apart:
        row = {"reason": each.reason, "steps": each.steps}
        rows.append(row | {"excess_ns_per_step_of_the_run": each.excess_ns})
    return rows


def kernels(found: KernelLedger | None) -> dict[str, Any] | None:
    """Return ns per captured step of the base's batch, or null without captured steps on both."""
    if found is None:
        return None
    return {
        "captured_steps": {"base": found.base_steps, "target": found.target_steps},
        "rows_ns_per_step": view_json.of(found.rows),
        "casts_and_layout_copies_added_ns_per_step": found.moving_added_ns,
        "tensor_core_share": found.tensor_core_share._asdict(),
        "launched_late_share": found.launched_late_share._asdict(),
        "ceiling_share": found.ceiling_share._asdict(),
    }


def cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "cause": cause.detail or None,
        "cost_ns_per_step": estimate(cause.cost_ns) if cause.cost_ns else None,
        "share_of_gap": cause.share_of_gap,
        "step_without_it_ns": estimate(cause.without_ns) if cause.without_ns else None,
        "evidence": cause.evidence,
        "remedy": cause.remedy or None,
        "is_gain": cause.is_gain,
    }


def coverage_json(found: Coverage | None) -> dict[str, Any] | None:
    """Return what the causes explain of the gap, or null if it is not sure that there is one."""
    if found is None:
        return None
    return {
        "share_of_gap": found.share,
        "at_most": found.is_bound,
        "row_without_cause": found.row or None,
        "row_share_of_gap": found.row_share,
        "settings_that_can_affect_the_row": list(found.settings),
    }


def scaling(rows: Sequence[ScalingRow]) -> dict[str, Any]:
    """Return what `profkit explain --json` prints of more than two runs."""
    return {"runs": list(map(scaling_row, rows))}


def compared(view: Compared, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return two sides as `explained`, or the scaling of more with the ledgers of these pairs."""
    if not view.scaling:
        return explained(view.between(pairs[0]))
    return {**scaling(view.scaling), "pairs": [explained(view.between(pair)) for pair in pairs]}


def scaling_row(row: ScalingRow) -> dict[str, Any]:
    return {
        "run": row.name,
        "ranks": row.gpus,
        "throughput_samples_per_s": estimate(row.throughput),
        "speed_up_ratio": estimate(row.speed_up),
        "efficiency_share": estimate(row.efficiency),
        "why_impossible": row.doubt or None,
        "factors_ratio": {name: estimate(factor) for name, factor in row.factors.items()},
        "waiting_known": row.waiting_known,
        "exchange_timed": row.exchange_timed,
        "why_no_factors": row.clocks or None,
        "largest_loss": row.largest_loss or None,
        "meeting": meeting(row.meeting) if row.meeting else None,
    }


def meeting(found: Meeting) -> dict[str, Any]:
    waited_for = []
    for each in found.waited_for:
        row = {
            "rank": each.rank,
            "last_in_collectives": each.last_in,
            "share_of_waiting": each.share,
            "phase": each.phase or None,
            "excess_ns_per_step": each.excess_ns if each.phase else None,
        }
        waited_for.append(row)
    return {
        "collectives": found.collectives,
        "collectives_seen_on_all_ranks": found.matched,
        "timed": found.timed,
        "waiting_ns_per_step": found.waiting_ns,
        "transfer_ns_per_step": found.transfer_ns,
        "waited_for": waited_for,
        "links": view_json.links(found.links),
    }
