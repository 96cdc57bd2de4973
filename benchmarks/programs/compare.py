"""Check a recorded program against the probe: steps, samples, phases, losses, exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from events import Process, Seen, read
from registry import Program

from profkit.analysis.overview import build_overview
from profkit.trace import Trace
from profkit.vocab import ZERO_GRAD

PHASE_EVENTS = {
    "backward": ("backward",),
    "optimizer": ("step", "scaler"),
    "data": ("data", "open", "exhausted"),
}
"""The events of the probe that are the phases of profkit."""

MOST_PHASE_SHARE = 0.03
"""A phase may differ from the probe's time by this share of the wall time of the steps."""


@dataclass(frozen=True)
class Verdict:
    """All that is known of one program; `misses` say in words what is wrong."""

    program: Program
    skipped: str = ""
    misses: tuple[str, ...] = ()
    steps: str = "-"
    samples: str = "-"
    phases: str = "-"
    unknown: str = "-"
    losses: str = "-"
    cpu: str = "-"
    made: str = ""


def judge(program: Program, folder: Path) -> Verdict:
    """Judge a program by what its two runs have left."""
    path = folder / "result.json"
    if not path.exists():
        return Verdict(program, skipped="no result yet; `make programs` runs it")
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["skipped"]:
        return Verdict(program, skipped=result["skipped"], made=result["made"])
    bare = result["bare"]
    if bare["code"]:
        return Verdict(
            program, skipped=f"fails bare: {last_line(bare['errors'])}", made=result["made"]
        )
    recorded = result["recorded"]
    misses = []
    if recorded["code"]:
        misses.append(f"exit code {recorded['code']}, bare 0: {last_line(recorded['errors'])}")
    misses += [line for line in recorded["errors"].splitlines() if "is left out where" in line]
    cells = _compare(program, folder, misses)
    cpu = f"{bare['cpu_s']:.1f} -> {recorded['cpu_s']:.1f}"
    return Verdict(program, misses=tuple(misses), cpu=cpu, made=result["made"], **cells)


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no message"


def _compare(program: Program, folder: Path, misses: list[str]) -> dict[str, str]:
    """Return the cells of the table, and add what is wrong to `misses`."""
    bare, truth = read(folder / "bare" / "probe"), read(folder / "recorded" / "probe")
    cells = {"losses": _compare_losses(bare, truth, misses)}
    runs = sorted((folder / "recorded" / "traces").glob("*/run.json"))
    if not runs:
        misses.append("nothing was recorded")
        return cells
    trace = Trace.open(runs[0].parent)
    if len(truth.processes) != program.ranks:
        misses.append(f"the probe saw {len(truth.processes)} training processes")
    own = {rank.manifest.pid: rank.rank for rank in trace.ranks}
    missing = [process.pid for process in truth.processes if process.pid not in own]
    if missing or len(runs) > 1:
        misses.append(f"{len(missing)} of {len(truth.processes)} processes are not in the run")
    pairs = [(process, own[process.pid]) for process in truth.processes if process.pid in own]
    cells["steps"] = _compare_steps(program, trace, pairs, misses)
    cells["samples"] = _compare_samples(program, trace, truth, misses)
    cells["phases"] = _compare_phases(trace, pairs, misses)
    share = {part.name: part.share.value for part in build_overview(trace).phases}.get("unknown")
    cells["unknown"] = "-" if share is None else f"{100 * share:.1f} %"
    return cells


def _compare_losses(bare: Seen, recorded: Seen, misses: list[str]) -> str:
    sides = []
    for side in (bare, recorded):
        sides.append(sorted(json.dumps(process.losses) for process in side.processes))
    if sides[0] == sides[1]:
        return "yes"
    misses.append("the losses differ from those of the bare job")
    return "**no**"


def _compare_steps(
    program: Program, trace: Trace, pairs: list[tuple[Process, int]], misses: list[str]
) -> str:
    cells = []
    for process, rank in pairs:
        rows = trace.steps.filter(pc.equal(trace.steps["rank"], rank)).num_rows
        expected = process.count(program.counts)
        cells.append(f"{rows}/{expected}")
        if rows != expected:
            misses.append(f"rank {rank}: {rows} steps, the probe counts {expected}")
    return ", ".join(dict.fromkeys(cells)) or "none"


def _compare_samples(program: Program, trace: Trace, truth: Seen, misses: list[str]) -> str:
    counted = int(pc.sum(trace.steps["sample_count"]).as_py() or 0)
    expected: int | None = truth.samples if program.has_loader else 0
    if program.samples_per_step is not None:
        expected = program.samples_per_step * trace.steps.num_rows
    if not program.has_loader and program.samples_per_step is None and not counted:
        return "none, no loader"
    if expected is None:
        return f"{counted}, not known by the probe"
    if counted != expected:
        misses.append(f"{counted} samples, the probe counts {expected}")
    return f"{counted}/{expected}"


def _compare_phases(trace: Trace, pairs: list[tuple[Process, int]], misses: list[str]) -> str:
    """Compare the time of phases within the recorded steps with the probe's own clock."""
    worst, wrong = 0.0, False
    for process, rank in pairs:
        steps = trace.steps.filter(pc.equal(trace.steps["rank"], rank))
        # In the first step the frameworks still import, and profkit opens its files.
        steps = steps.filter(pc.and_(steps["instrumented"], pc.greater(steps["step"], 0)))
        starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        wall = max(1.0, float((ends - starts).sum()))
        spans = _spans_of(trace.spans, rank, steps)
        for phase, kinds in PHASE_EVENTS.items():
            if phase == "optimizer" and process.has_closures:
                continue  # the probe cannot tell the closure's work
            expected = process.inside(kinds, starts, ends)
            off = (_time_in(spans, phase) - expected) / wall
            worst = max(worst, abs(off))
            if abs(off) > MOST_PHASE_SHARE:
                wrong = True
                misses.append(
                    f"rank {rank}: {phase} is {off:+.1%} of the wall time off the probe's"
                )
    return f"**no** ({worst:.1%})" if wrong else f"yes ({worst:.1%})"


def _spans_of(spans: pa.Table, rank: int, steps: pa.Table) -> pa.Table:
    kept = pc.and_(
        pc.equal(spans["rank"], rank), pc.is_in(spans["step"], steps["step"].combine_chunks())
    )
    return spans.filter(kept)


def _time_in(spans: pa.Table, phase: str) -> float:
    """Return the time in the outermost spans of a phase; the probe times no reset of gradients."""
    outer = pc.equal(spans["depth"], pa.scalar(0, pa.int16()))
    own = spans.filter(pc.and_(outer, pc.equal(spans["phase"].cast(pa.string()), phase)))
    own = own.filter(pc.not_equal(own["name"].cast(pa.string()), ZERO_GRAD))
    start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    order = np.argsort(start, kind="stable")
    total, reached = 0, 0
    for place in order.tolist():
        total += max(0, int(end[place]) - max(int(start[place]), reached))
        reached = max(reached, int(end[place]))
    return float(total)


HEADINGS = (
    "program",
    "ranks",
    "steps",
    "samples",
    "phases",
    "unknown",
    "losses",
    "CPU s",
    "verdict",
)


def as_row(verdict: Verdict) -> list[Any]:
    """Return the cells of a program's row."""
    state = "right" if not verdict.misses else f"**{len(verdict.misses)} misses**"
    if verdict.skipped:
        state = "not run"
    return [
        verdict.program.name,
        verdict.program.ranks,
        verdict.steps,
        verdict.samples,
        verdict.phases,
        verdict.unknown,
        verdict.losses,
        verdict.cpu,
        state,
    ]
