"""The JSON twin of every screen: the same figures, with the unit in each key."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from profkit.analysis.estimate import Estimate
from profkit.analysis.overview import Overview
from profkit.report import view_json
from profkit.trace import Verification


def dumps(content: Any) -> str:
    """JSON as profkit prints it: keys in the order given, null for what is not known or not finite.

    It is plain ASCII, so that no name in it can steer a terminal or fail to be encoded.
    """
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _estimate(estimate: Estimate, scale: float = 1.0) -> dict[str, float | None]:
    return {
        "value": _scaled(estimate.value, scale),
        "low": _scaled(estimate.low, scale),
        "high": _scaled(estimate.high, scale),
    }


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None or not math.isfinite(value) else value * scale


def overview(view: Overview) -> dict[str, Any]:
    """What `profkit report --json` prints."""
    return {
        "run": view.path,
        "workload": view.workload,
        "framework": view.framework,
        "state": view.state.value,
        "why": view.why,
        "ranks": view.world_size,
        "ranks_seen": view.ranks_seen,
        "config": dict(view.config),
        "verdict": "measured" if view.judged else "cannot judge",
        "steps_seen": view.steps_seen,
        "steps_used": len(view.selection.steps),
        "steps_needed": view.steps_needed,
        "steps_left_out": dict(view.selection.left_out),
        "throughput_samples_per_s": _estimate(view.throughput),
        "step_ms": _estimate(view.step_ns, 1e-6),
        "phases": [
            {
                "phase": part.name,
                "share": _estimate(part.share),
                "step_ms": _estimate(part.step_ns, 1e-6),
            }
            for part in view.phases
        ],
        "first_loss": _scaled(view.first_loss, 1.0),
        "last_loss": _scaled(view.last_loss, 1.0),
        "exchange": _exchange(view),
        "own_cost_ms_per_step": {
            "hooks": _scaled(view.own_cost.hooks_ns, 1e-6),
            "writer": _scaled(view.own_cost.writer_ns, 1e-6),
            "collectors": _scaled(view.own_cost.collectors_ns, 1e-6),
            "total": _scaled(view.own_cost.total_ns, 1e-6),
            "by_switching_off": _estimate(view.own_cost.switched, 1e-6)
            if view.own_cost.switched
            else None,
        },
        "own_cost_opening_ms": _scaled(view.own_cost.opening_ns, 1e-6),
        "collectives": [
            dataclasses.asdict(use) | {"share_of_ceiling": use.share_of_ceiling}
            for use in view.links
        ],
        "kernels": _kernels(view),
        "kernels_by_name": view_json.of(view.by_kernel),
        "data_quality": list(view.quality),
        "flags": list(view.flags),
    }


def _exchange(view: Overview) -> dict[str, Any] | None:
    """The gradient exchange by rank, and the rank that the others wait for."""
    if view.exchange is None:
        return None
    late = view.late_rank
    return {
        "collectives": view.exchange.collectives,
        "collectives_seen_on_all_ranks": view.exchange.matched,
        "share_of_waiting_by_late_rank": {
            str(rank): share for rank, share in view.exchange.waited_for.items()
        },
        "late_rank": late
        and {
            "rank": late.rank,
            "share": late.share,
            "waited_ms": late.waited_ns * 1e-6,
            "phase": late.phase,
            "excess_ms": late.excess_ns * 1e-6,
        },
        "ranks_ms_per_step": [
            {
                "rank": part.rank,
                "exposed": part.exposed_ns * 1e-6,
                "waiting": _scaled(part.waiting_ns, 1e-6),
                "transfer": _scaled(part.transfer_ns, 1e-6),
                "not_ready": part.not_ready_ns * 1e-6,
                "hidden": part.hidden_ns * 1e-6,
            }
            for part in view.exchange.ranks
        ],
    }


def _kernels(view: Overview) -> dict[str, Any] | None:
    """The windows of steps in which kernels were captured, and what they cost."""
    found = view.kernels
    if found is None:
        return None
    return {
        "steps_captured": found.steps,
        "rows": found.kernels,
        "devices": list(found.devices),
        "busy_ms_per_step": found.busy_ns * 1e-6,
        "ms_per_step_by_phase": {name: value * 1e-6 for name, value in found.by_phase.items()},
        "ms_per_step_by_category": {
            name: value * 1e-6 for name, value in found.by_category.items()
        },
        "tensor_core_share_of_matrix_work": found.tensor_core_share,
        "steps_left_out": found.steps_left_out,
        "slowdown_ratio": found.slowdown,
        "borders_ms": found.border_ns * 1e-6,
        "reading_ms": found.reading_ns * 1e-6,
    }


def verification(found: Verification) -> dict[str, Any]:
    """What `profkit verify --json` prints."""
    return {
        "run": str(found.path),
        "state": found.state.value,
        "reasons": list(found.reasons),
        "rows": found.rows,
        "rows_lost": found.lost,
        "rows_dropped": found.dropped,
        "tables": [
            {
                "rank": check.rank,
                "table": check.table,
                "rows": check.rows,
                "rows_expected": check.expected,
                "rows_lost": check.lost,
                "rows_dropped": check.dropped,
                "problem": check.problem or None,
            }
            for check in found.tables
        ],
    }
