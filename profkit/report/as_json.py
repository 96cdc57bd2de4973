"""One run, and the state of its files, as JSON with units in the keys."""

from __future__ import annotations

import json
import math
from typing import Any

from profkit.analysis.device_times import DeviceTimes, PhaseClock
from profkit.analysis.estimate import Estimate
from profkit.analysis.exchange import RankExchange
from profkit.analysis.overview import Overview
from profkit.report import (
    changes_section,
    code_json,
    compiling_section,
    device_sections,
    long_steps_section,
    view_json,
)
from profkit.report.log_words import coverage
from profkit.trace import Verification

NS_IN_MS = 1e-6


def dumps(content: Any) -> str:
    """Return JSON as profkit prints it.

    Keys keep their order, and what is unknown or not finite is null. It is plain ASCII, so that no
    name in it can steer a terminal or fail to be encoded.
    """
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def _estimate(estimate: Estimate, scale: float = 1.0) -> dict[str, float | None]:
    return {
        "value": _scaled(estimate.value, scale),
        "low": _scaled(estimate.low, scale),
        "high": _scaled(estimate.high, scale),
    }


def _scaled(value: float | None, scale: float) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value * scale


def _ms(ns: float | None) -> float | None:
    return _scaled(ns, NS_IN_MS)


def _all_ms(values_ns: Any) -> dict[str, float]:
    return {name: ns * NS_IN_MS for name, ns in values_ns.items()}


def overview(view: Overview) -> dict[str, Any]:
    """Return what `profkit report --json` prints."""
    phases = []
    for part in view.phases:
        share, step_ms = _estimate(part.share), _estimate(part.step_ns, NS_IN_MS)
        row: dict[str, Any] = {"phase": part.name, "share": share, "step_ms": step_ms}
        if part.host_ns is not None:
            row["host_ms"] = part.host_ns * NS_IN_MS
        phases.append(row)
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
        "steps_used": view.steps_used,
        "steps_needed": view.steps_needed,
        "steps_left_out": dict(view.left_out),
        **thinned(view),
        "throughput_samples_per_s": _estimate(view.throughput),
        "throughput_covers": coverage(view) or None,
        "step_ms": _estimate(view.step_ns, NS_IN_MS),
        "step_without_long_ms": _ms(view.long_steps.others_ns),
        "phases": phases,
        **device_clock(view),
        "changes": changes_section.as_json(view),
        "long_steps": long_steps_section.as_json(view),
        "compiling": compiling_section.as_json(view),
        "unknown_places": code_json.unknown_json(view.unknown_places),
        "code": code_json.code_json(view.code),
        "code_of_ranks": code_json.ranks_json(view.rank_lines),
        "code_of_workers": code_json.workers_json(view.worker_lines),
        "first_loss": _scaled(view.first_loss, 1.0),
        "last_loss": _scaled(view.last_loss, 1.0),
        "exchange": exchange(view),
        "exchange_by_dimension": view_json.of(view.sharded),
        "own_cost_ms_per_step": own_cost(view),
        "own_cost_opening_ms": _ms(view.own_cost.opening_ns),
        "collectives": view_json.links(view.links),
        "device_time": device_sections.as_json(view.devices),
        "kernels": kernels(view),
        "kernels_by_name": view_json.of(view.by_kernel),
        "data_quality": list(view.quality),
        "flags": list(view.flags),
    }


def thinned(view: Overview) -> dict[str, Any]:
    """Return what a long run kept, and the steps behind its sums; nothing of other runs."""
    found = view.thinned
    if found is None:
        return {}
    lengths = {}
    for share, length_ns in found.quantiles.items():
        lengths[f"{share:g}"] = _scaled(length_ns, NS_IN_MS)
    return {
        "thinned": {
            "steps_in_full": found.in_full,
            "steps_sampled": len(view.selection.steps),
            "sampled_one_in": found.one_in,
            "step_ms_quantiles": lengths,
            "quantile_error": found.error,
        },
    }


def device_clock(view: Overview) -> dict[str, Any]:
    """Return the clock that phases are on, and what they are about; nothing without a device."""
    if view.clock is PhaseClock.HOST:
        return {}
    found: dict[str, Any] = {"phases_clock": view.clock.value}
    if view.costs is not None:
        steps = {"used": view.costs.steps, "left_out": dict(view.costs.selection.left_out)}
        found["phases_steps"] = steps
        found["phases_ranks_without_device_times"] = list(view.costs.unclocked)
        found["exchange_timed"] = view.exchange_timed
    if view.device_times is not None:
        found["device_times"] = device_times(view.device_times)
    return found


def device_times(found: DeviceTimes) -> dict[str, Any]:
    return {
        "phases": found.phases,
        "missing": found.missing,
        "steps_with_missing": found.steps,
        "ranks_without": list(found.ranks),
        "reasons": list(found.reasons),
    }


def own_cost(view: Overview) -> dict[str, Any]:
    cost = view.own_cost
    control = None
    if cost.switched:
        control = _estimate(cost.switched, NS_IN_MS)
    return {
        "hooks": _ms(cost.hooks_ns),
        "writer": _ms(cost.writer_ns),
        "collectors": _ms(cost.collectors_ns),
        "total": _ms(cost.total_ns),
        "by_switching_off": control,
    }


def exchange(view: Overview) -> dict[str, Any] | None:
    """Return the gradient exchange by rank, and the rank that the others wait for."""
    exchange, late = view.exchange, view.late_rank
    if exchange is None:
        return None
    late_rank = None
    if late:
        late_rank = {
            "rank": late.rank,
            "share": late.share,
            "waited_ms": late.waited_ns * NS_IN_MS,
            "phase": late.phase,
            "excess_ms": late.excess_ns * NS_IN_MS,
            "also_ms": {phase: ns * NS_IN_MS for phase, ns in late.also_ns.items()},
        }
    return {
        "collectives": exchange.collectives,
        "collectives_seen_on_all_ranks": exchange.matched,
        "share_of_waiting_by_late_rank": view_json.of(exchange.waited_for),
        "late_rank": late_rank,
        "ranks_ms_per_step": list(map(rank_exchange, exchange.ranks)),
    }


def rank_exchange(part: RankExchange) -> dict[str, Any]:
    return {
        "rank": part.rank,
        "exposed": part.exposed_ns * NS_IN_MS,
        "waiting": _ms(part.waiting_ns),
        "transfer": _ms(part.transfer_ns),
        "not_ready": part.not_ready_ns * NS_IN_MS,
        "hidden": _ms(part.hidden_ns),
    }


def kernels(view: Overview) -> dict[str, Any] | None:
    """Return what the windows of captured steps show, and what they cost."""
    found = view.kernels
    if found is None:
        return None
    return {
        "steps_captured": found.steps,
        "rows": found.kernels,
        "devices": list(found.devices),
        "busy_ms_per_step": found.busy_ns * NS_IN_MS,
        "ms_per_step_by_phase": _all_ms(found.by_phase),
        "ms_per_step_by_category": _all_ms(found.by_category),
        "tensor_core_share_of_matrix_work": found.tensor_core_share,
        "steps_left_out": found.steps_left_out,
        "slowdown_ratio": found.slowdown,
        "borders_ms": found.border_ns * NS_IN_MS,
        "reading_ms": found.reading_ns * NS_IN_MS,
    }


def verification(found: Verification, times: DeviceTimes | None = None) -> dict[str, Any]:
    """Return what `profkit verify --json` prints."""
    tables = []
    for check in found.tables:
        table = {
            "rank": check.rank,
            "table": check.table,
            "rows": check.rows,
            "rows_expected": check.expected,
            "rows_lost": check.lost,
            "rows_dropped": check.dropped,
            "problem": check.problem or None,
        }
        tables.append(table)
    return {
        "run": str(found.path),
        "state": found.state.value,
        "reasons": list(found.reasons),
        "rows": found.rows,
        "rows_lost": found.lost,
        "rows_dropped": found.dropped,
        "tables": tables,
        "device_times": device_times(times) if times else None,
    }
