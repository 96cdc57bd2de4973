"""The JSON twin of the ledger: the same figures, with the unit in each key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from profkit.analysis.costs import RunCosts
from profkit.analysis.estimate import Estimate
from profkit.explain.compared import Compared, Pair
from profkit.explain.explained import Explained
from profkit.explain.gate import Judgement
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Ledger, Row, why_not
from profkit.explain.meeting import Meeting
from profkit.explain.rules.base import Finding
from profkit.explain.scaling import ScalingRow


def explained(view: Explained, judgements: Sequence[Judgement] = ()) -> dict[str, Any]:
    """What `profkit explain BASE TARGET --json` prints; times are ns per sample per rank unless the key says otherwise."""
    ledger = view.ledger
    return {
        "base": view.case.base_name,
        "target": view.case.target_name,
        "verdict": ledger.verdict.value,
        "why_not_judged": why_not(ledger) or None,
        "time_is_per": "sample and rank" if ledger.per_sample else "step and rank",
        "change_share": estimate(ledger.change),
        "efficiency_share": estimate(ledger.efficiency),
        "samples_per_step_and_gpu": ledger.samples_per_step if ledger.per_sample else None,
        "total_ns": _row(ledger.total),
        "largest_row": ledger.largest.name if ledger.largest else None,
        "rows_ns": [_row(row) for row in ledger.rows],
        "overlapped_ns": [_row(row) for row in ledger.beside],
        "profkit_in_all_ns": _row(ledger.switched) if ledger.switched else None,
        "kernels": _kernels(view.kernels),
        "steps": _steps(ledger),
        "findings": [_finding(found) for found in view.findings],
        "caveats": list(view.caveats),
        "differences": [
            {"name": each.name, "base": each.base, "target": each.target, "can_affect": each.rows}
            for each in ledger.differences
        ],
        "nothing_else_differs": not ledger.differences,
        "gates": [
            {"gate": str(each.gate), "outcome": each.outcome.value, "why": each.why}
            for each in judgements
        ],
    }


def estimate(found: Estimate) -> dict[str, float | None]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _row(row: Row) -> dict[str, Any]:
    """The figures of a row; `rows` only where it opens into finer ones."""
    figures = {
        "name": row.name,
        "base": estimate(row.base),
        "target": estimate(row.target),
        "difference": estimate(row.delta),
    }
    return figures | ({"rows": [_row(part) for part in row.inside]} if row.inside else {})


def _steps(ledger: Ledger) -> dict[str, Any]:
    return {
        side: _side(costs) for side, costs in (("base", ledger.base), ("target", ledger.target))
    }


def _side(costs: RunCosts) -> dict[str, Any]:
    apart = [
        {
            "reason": each.reason,
            "steps": each.steps,
            "excess_ns_per_step_of_the_run": each.excess_ns,
        }
        for each in costs.apart
    ]
    return {"used": costs.steps, "needed": costs.steps_needed, "apart": apart}


def _kernels(found: KernelLedger | None) -> dict[str, Any] | None:
    """Times are ns in a captured step of the base's batch; null where not both runs have captured steps."""
    if found is None:
        return None
    return {
        "captured_steps": {"base": found.base_steps, "target": found.target_steps},
        "rows_ns_per_step": [dataclasses.asdict(row) for row in found.rows],
        "casts_and_layout_copies_added_ns_per_step": found.moving_added_ns,
        "tensor_core_share": found.tensor_core_share._asdict(),
        "launch_bound_share": found.launch_bound_share._asdict(),
        "ceiling_share": found.ceiling_share._asdict(),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "cause": finding.cause or None,
        "cost_ns_per_step": estimate(finding.cost_ns) if finding.cost_ns else None,
        "share_of_gap": finding.share_of_gap,
        "evidence": finding.evidence,
        "remedy": finding.remedy or None,
    }


def scaling(rows: Sequence[ScalingRow]) -> dict[str, Any]:
    """What `profkit explain` prints of more than two runs."""
    return {"runs": [_scaling_row(row) for row in rows]}


def compared(view: Compared, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Two sides as `explained`; of more, how the job scales over them, and the ledgers of these pairs."""
    if not view.scaling:
        return explained(view.between(pairs[0]))
    return {**scaling(view.scaling), "pairs": [explained(view.between(pair)) for pair in pairs]}


def _scaling_row(row: ScalingRow) -> dict[str, Any]:
    factors: dict[str, Estimate] = dict(row.factors)
    return {
        "run": row.name,
        "ranks": row.gpus,
        "throughput_samples_per_s": estimate(row.throughput),
        "speed_up_ratio": estimate(row.speed_up),
        "efficiency_share": estimate(row.efficiency),
        "factors_ratio": {name: estimate(factor) for name, factor in factors.items()},
        "waiting_known": row.waiting_known,
        "largest_loss": row.largest_loss or None,
        "meeting": _meeting(row.meeting) if row.meeting else None,
    }


def _meeting(found: Meeting) -> dict[str, Any]:
    return {
        "collectives": found.collectives,
        "collectives_seen_on_all_ranks": found.matched,
        "waiting_ns_per_step": found.waiting_ns,
        "transfer_ns_per_step": found.transfer_ns,
        "waited_for": [
            {
                "rank": each.rank,
                "last_in_collectives": each.last_in,
                "share_of_waiting": each.share,
                "phase": each.phase or None,
                "excess_ns_per_step": each.excess_ns if each.phase else None,
            }
            for each in found.waited_for
        ],
        "links": [
            dataclasses.asdict(use) | {"share_of_ceiling": use.share_of_ceiling}
            for use in found.links
        ],
    }
