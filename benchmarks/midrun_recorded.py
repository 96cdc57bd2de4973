"""Records the jobs of `midrun_suites.py`, and scores what profkit said of each."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from midrun_suites import BATCH, DRIFT, JOBS, PERIODIC, SEEN, STEP, Planted

from profkit.analysis.change_points import find_shifts
from profkit.analysis.overview import build_overview
from profkit.analysis.run_change import RunChange
from profkit.analysis.run_halves import cut_at
from profkit.explain.explained import explain
from profkit.frame.columns import rows_of_rank
from profkit.frame.estimate import Ints
from profkit.frame.phases import step_times
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import including_batches
from profkit.trace import Trace
from profkit.trace.reader import find_runs

PATIENCE_S = 300
NEAR, NEAR_DRIFT = 15, 60
"""A change counts as found if it is reported to begin within so many steps of its place."""

LEAST_EFFECT = 0.05
"""A planted step that changes the median step by less is hidden, as by workers that are ahead."""

SAID = "profkit: "


def folder_of(work: Path, name: str) -> Path:
    return work / name.replace(" ", "_").replace(",", "").replace("'", "")


def record(work: Path, only: Sequence[str]) -> None:
    """Record the missing jobs, one after the other."""
    job = Path(__file__).with_name("midrun_job.py")
    for name, planted in JOBS.items():
        folder = folder_of(work, name)
        if (folder / "done").exists() or (only and name not in only):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        words = ["--change", planted.change, "--at", str(planted.at), *planted.options]
        command = [sys.executable, str(job), *words]
        if planted.ranks > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command = [sys.executable, *launch, str(planted.ranks), str(job), *words]
        begun = time.monotonic()
        code = _run(folder, command)
        if code:
            raise SystemExit(f"{folder}: exit code {code}; see {folder / 'stderr'}")
        (folder / "done").touch()
        print(f"{name}, {time.monotonic() - begun:.0f} s", flush=True)


def _run(folder: Path, command: Sequence[str]) -> int:
    """Run a job under `profkit run`, and store each line of stderr with its time of day."""
    process = subprocess.Popen(
        [sys.executable, "-m", "profkit", "run", "--output", str(folder / "runs"), "--", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    late = threading.Timer(PATIENCE_S, process.terminate)
    late.start()
    assert process.stderr is not None
    with (folder / "stderr").open("w", encoding="utf-8") as file:
        for line in process.stderr:
            file.write(json.dumps([time.time(), line.rstrip("\n")]) + "\n")
    late.cancel()
    return process.wait()


@dataclass(frozen=True)
class Scored:
    """What profkit said of one job."""

    name: str
    planted: Planted
    found: RunChange | None
    needed: int | None
    """Steps from the planted place that the search needs."""
    delay: int | None
    """Steps from the planted place until the line on stderr: rows come every half second."""
    causes: tuple[str, ...]
    is_cause_right: bool
    others: tuple[RunChange, ...]
    """Changes that were not planted."""
    healthy: int
    """Steps before the planted change."""
    false: int
    """Changes that were reported among them."""
    effect: float | None = None
    """By what share the median step is longer after the planted place, if a step was planted."""

    @property
    def is_planted(self) -> bool:
        """True if there is something to be found."""
        if not self.planted.kinds:
            return False
        return self.effect is None or abs(self.effect) >= LEAST_EFFECT


def score_job(name: str, planted: Planted, folder: Path) -> Scored:
    trace = Trace.open(find_runs(folder / "runs")[0])
    changes = build_overview(trace).changes
    used = including_batches(frame_of(trace).selection)
    if planted.change == "none":
        healthy = len(used), len(changes)
        return Scored(name, planted, None, None, None, (), True, changes, *healthy)
    found = _nearest(planted, changes)
    others = tuple(change for change in changes if change is not found)
    causes: tuple[str, ...] = ()
    if found is not None:
        causes = tuple(_causes(trace, found))
    is_right = bool(causes) and causes[0] in planted.causes
    false = sum(change.first_step < planted.at - NEAR for change in others)
    return Scored(
        name,
        planted,
        found,
        _needed(trace, planted, used),
        _delay(trace, planted, folder),
        causes,
        is_right,
        others,
        int((used < planted.at).sum()),
        false,
        _effect(trace, planted, used),
    )


def _effect(trace: Trace, planted: Planted, used: Ints) -> float | None:
    if STEP not in planted.kinds:
        return None
    wall_ns = step_times(trace.steps, trace.spans, used).wall_ns
    before, after = wall_ns[used < planted.at], wall_ns[used >= planted.at]
    if not len(before) or not len(after):
        return None
    return float(np.median(after) / np.median(before)) - 1


def _reach(planted: Planted) -> int:
    """Return how far from its place a change counts; nobody sees where a drift begins."""
    if DRIFT in planted.kinds:
        return NEAR_DRIFT
    return max(NEAR, planted.every)


def _nearest(planted: Planted, changes: Sequence[RunChange]) -> RunChange | None:
    """Return the change of a right kind that begins next to the planted place."""
    near, reach = [], _reach(planted)
    for change in changes:
        distance = abs(change.first_step - planted.at)
        if change.kind.value in planted.kinds and distance <= reach:
            near.append((distance, change.first_step, change))
    return min(near, key=lambda each: each[:2])[2] if near else None  # two may begin there


def _causes(trace: Trace, change: RunChange) -> Iterator[str]:
    """Yield what the change itself says, and the kinds of the causes by `explain --at`."""
    if change.samples is not None:
        yield BATCH
    for cause in explain(*cut_at(trace, change.first_step)).causes:
        yield cause.kind


def _needed(trace: Trace, planted: Planted, used: Ints) -> int | None:
    """Return after how many steps a search of each step would have found the change."""
    if planted.every > 1:
        return None
    for shift in find_shifts(step_times(trace.steps, trace.spans, used).wall_ns):
        if abs(int(used[shift.at]) - planted.at) <= _reach(planted):
            return int(used[shift.seen]) - planted.at + 1
    return None


def _delay(trace: Trace, planted: Planted, folder: Path) -> int | None:
    """Return after how many steps the line about the change was there."""
    anchor = trace.ranks[0].manifest.anchor
    steps = rows_of_rank(trace.steps, trace.ranks[0].rank)
    ends, numbers = steps["end_ns"].to_numpy(), steps["step"].to_numpy()
    reach = _reach(planted)
    for text in (folder / "stderr").read_text(encoding="utf-8").splitlines():
        at_s, line = json.loads(text)
        words = line.removeprefix(SAID).replace(",", "").split()
        if not line.startswith(SAID) or words[:1] not in (["since"], ["from"]):
            continue
        if words[1] != "step" or abs(int(words[2]) - planted.at) > reach:
            continue
        now_ns = at_s * 1e9 - anchor.realtime_ns + anchor.monotonic_ns
        ended = numbers[ends <= now_ns]
        return int(ended.max()) - planted.at if len(ended) else None
    return None


def score(work: Path) -> dict[str, Any]:
    """Return the figures of all jobs, and a row per job."""
    scored = []
    for name, planted in JOBS.items():
        folder = folder_of(work, name)
        if (folder / "done").exists():
            scored.append(score_job(name, planted, folder))
    unseen = [each for each in scored if each.name not in SEEN]
    rows = list(map(_row, scored))
    return {
        "all": _summary(scored),
        "without jobs that led to a rule": _summary(unseen),
        "rows": rows,
    }


def _summary(scored: Sequence[Scored]) -> dict[str, Any]:
    planted = [each for each in scored if each.is_planted]
    delays = [each.delay for each in planted if each.delay is not None]
    needed = [each.needed for each in planted if each.needed is not None]
    return {
        "planted": len(planted),
        "without an effect": sum(bool(each.planted.kinds) for each in scored) - len(planted),
        "found": sum(each.found is not None for each in planted),
        "cause right": sum(each.is_cause_right for each in planted),
        "median steps needed": statistics.median(needed) if needed else None,
        "live lines": len(delays),
        "median steps until the live line": statistics.median(delays) if delays else None,
        "healthy steps": sum(each.healthy for each in scored),
        "false alarms in them": sum(each.false for each in scored),
        "other changes": sum(len(each.others) for each in scored),
    }


def _row(each: Scored) -> dict[str, Any]:
    return {
        "job": each.name,
        "planted": f"{' or '.join(each.planted.kinds) or 'none'} at {each.planted.at}",
        "is_planted": each.is_planted,
        "effect": each.effect,
        "reported": None if each.found is None else _shown(each.found),
        "needed": each.needed,
        "live": each.delay,
        "first cause": next(iter(each.causes), None),
        "cause right": each.is_cause_right,
        "not planted": list(map(_shown, each.others)),
    }


def _shown(change: RunChange) -> str:
    shown = f"{change.kind.value} at {change.first_step}, {change.change.value:+.0%}"
    if change.kind.value == PERIODIC:
        shown += f" each {change.every}"
    if change.machine is not None:
        shown += " (machine)"
    return shown
