"""What must be true of the jobs of nccl_ranks.py: their probes and what profkit says agree."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from profkit.explain.explained import explain
from profkit.hangs.incidents import ALARM, SEEN, read_events
from profkit.trace import Trace
from profkit.trace.reader import find_runs

SIDES = ("bare", "recorded")
HANG_AFTER_S = 5
TICK_S = 2.0
"""The ranks look each second; then the verdict settles."""
SETTLED = 2
"""DDP's first step checks the model, and its second begins with other buckets."""
COST_GOAL = 0.15
KERNEL_GOAL, KERNEL_GOAL_US = 0.02, 50.0
"""The device time of a collective differs from its kernel by at most the larger of both."""


def count_unmatched(trace: Trace) -> int:
    ranks: dict[tuple[str, int], list[int]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for row in trace.collectives.to_pylist():
        key = row["communicator"], row["sequence"]
        ranks.setdefault(key, []).append(row["rank"])
        sizes[key] = row["group_size"]
    whole = sum(len(found) == len(set(found)) == sizes[key] for key, found in ranks.items())
    return len(ranks) - whole


class Check(NamedTuple):
    """One thing that must be true."""

    scenario: str
    what: str
    is_right: bool
    detail: str = ""

    def line(self) -> str:
        word = "right" if self.is_right else "WRONG"
        return f"{word}  {self.scenario}: {self.what}" + (
            f" ({self.detail})" if self.detail else ""
        )


@dataclass(frozen=True)
class Ran:
    """A job that was run, with its exit code; it has none if it had to be ended."""

    scenario: str
    side: str
    folder: Path
    backend: str
    ranks: int
    code: int | None
    took_s: float

    @functools.cached_property
    def results(self) -> list[dict[str, Any]]:
        """What each rank wrote."""
        files = [self.folder / "out" / f"{rank}.json" for rank in range(self.ranks)]
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    @functools.cached_property
    def run(self) -> Path:
        (run,) = find_runs(self.folder / "runs")
        return run

    @functools.cached_property
    def trace(self) -> Trace:
        return Trace.open(self.run)

    def step_ms(self) -> float:
        """Return the mean step by the job's own clock, over all ranks."""
        settled = [ns for each in self.results for ns in each["step_ns"][SETTLED:]]
        return float(statistics.mean(settled)) / 1e6


Runs = Mapping[str, Ran]
"""The jobs that were run, by scenario and side."""

Steps = dict[tuple[int, int], list[dict[str, Any]]]
"""The collectives of a rank's step, in their order."""


def check_both(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that recording has not changed how the job ends."""
    codes = [runs[f"{scenario} {side}"].code for side in SIDES]
    right = 1 if scenario == "stuck" else 0
    yield Check(scenario, "exit codes", codes == [right, right], f"{codes}, must be {right}")


def check_losses(scenario: str, runs: Runs) -> Iterator[Check]:
    bare, recorded = (runs[f"{scenario} {side}"].results for side in SIDES)
    pairs = list(zip(bare, recorded, strict=True))
    differ = sum(a["losses"] != b["losses"] for a, b in pairs)
    words = f"{len(bare[0]['losses'])} steps, {differ} ranks differ"
    yield Check(scenario, "losses are equal to the bit", not differ, words)


def collectives_by_step(trace: Trace) -> Steps:
    """Return the collectives of settled steps; control steps have none on purpose."""
    found: Steps = {}
    for row in trace.steps.to_pylist():
        if row["instrumented"] and row["step"] >= SETTLED:
            found[row["rank"], row["step"]] = []
    for row in sorted(trace.collectives.to_pylist(), key=lambda row: int(row["sequence"])):
        if (row["rank"], row["step"]) in found:
            found[row["rank"], row["step"]].append(row)
    return found


def check_collectives(scenario: str, runs: Runs) -> Iterator[Check]:
    """Compare the collectives of each step with the job's own, and those with torch's profiler."""
    bare, recorded = (runs[f"{scenario} {side}"] for side in SIDES)
    for rank, result in enumerate(bare.results):
        probed = {op: count * result["probed"] for op, (count, _) in result["expected"].items()}
        is_right = result["probe"]["ops"] == probed
        yield Check(
            scenario,
            f"torch's profiler of rank {rank} counts what it expects",
            is_right,
            str(probed),
        )
    trace, wrong, steps = recorded.trace, [], collectives_by_step(recorded.trace)
    for (rank, step), rows in steps.items():
        seen: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for row in rows:
            seen[row["op"]] = [seen[row["op"]][0] + 1, seen[row["op"]][1] + row["bytes"]]
        if seen != recorded.results[rank]["expected"]:
            wrong.append(f"rank {rank} step {step}: {dict(seen)}")
    per_rank = Counter(rank for rank, _ in steps)
    least = len(recorded.results[0]["losses"]) // 2
    enough = len(per_rank) == recorded.ranks and min(per_rank.values()) >= least
    yield Check(scenario, "most steps of each rank are recorded", enough, str(dict(per_rank)))
    words = f"{len(wrong)} of {len(steps)} wrong{': ' if wrong else ''}{'; '.join(wrong[:3])}"
    yield Check(scenario, "collectives of each step, and their bytes", not wrong, words)
    unmatched = count_unmatched(trace)
    words = f"{unmatched} of {trace.collectives.num_rows} rows' are not"
    yield Check(scenario, "each collective is seen once per rank", not unmatched, words)
    backends = set(trace.collectives["backend"].to_pylist())
    yield Check(scenario, "the backend", backends == {recorded.backend}, str(backends))


def check_kernels(scenario: str, runs: Runs) -> Iterator[Check]:
    """Compare the device times of collectives with the kernels of torch's profiler."""
    recorded = runs[f"{scenario} recorded"]
    if recorded.backend != "nccl":
        return
    steps, ratios, uncounted = collectives_by_step(recorded.trace), list[float](), 0
    for rank, result in enumerate(recorded.results):
        for step, kernels in result["probe"]["kernels"].items():
            rows = steps.get((rank, int(step or -1)))
            if rows is None:
                continue
            if len(rows) != len(kernels):
                uncounted += 1
                continue
            for row, (_, kernel_us) in zip(rows, kernels, strict=True):
                own_us = (row["end_ns"] - row["start_ns"]) / 1e3
                goal_us = max(KERNEL_GOAL * kernel_us, KERNEL_GOAL_US)
                ratios.append(abs(own_us - kernel_us) / goal_us)
    words = f"{uncounted} steps with another number of kernels, {len(ratios)} collectives compared"
    yield Check(scenario, "NCCL's kernels", bool(ratios) and not uncounted, words)
    if not ratios:
        return
    worst = f"differences in goals: median {statistics.median(ratios):.2f}, most {max(ratios):.2f}"
    yield Check(scenario, "device times are the kernels'", statistics.median(ratios) <= 1, worst)


def check_late(scenario: str, runs: Runs) -> Iterator[Check]:
    """Compare how late a rank is, by its report, with the job's own clock."""
    target = runs[f"{scenario} recorded"]
    rank = target.ranks - 1
    true_ms = statistics.mean(target.results[rank]["late_ns"]) / 1e6
    found = ask("report", target.run)["exchange"]["late_rank"] or {}
    named = (found.get("rank"), found.get("phase")) == (rank, "forward")
    yield Check(scenario, "the late rank is named, and its phase", named, str(found))
    said_ms = found.get("excess_ms") or 0.0
    is_right = abs(said_ms - true_ms) <= COST_GOAL * true_ms
    words = f"{said_ms:.1f} ms, own clock {true_ms:.1f} ms"
    yield Check(scenario, "how late it is", is_right, words)
    if target.backend == "nccl":  # over gloo, a busy machine may change the base by more
        causes = explain(runs["ddp recorded"].trace, target.trace).causes
        said = [f"{cause.kind}: {cause.evidence}" for cause in causes]
        first = causes[:1] and causes[0].kind == "late_rank" and f"rank {rank}" in said[0]
        yield Check(scenario, "it is the first cause against ddp", bool(first), "; ".join(said))


def ask(verb: str, run: Path) -> dict[str, Any]:
    """Return what profkit says of a run."""
    command = [sys.executable, "-m", "profkit", verb, str(run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_accumulation(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that a job which exchanges gradients after each backward is told so."""
    synced, this = (runs[f"{name} recorded"].trace for name in ("no_sync", scenario))
    kinds = [cause.kind for cause in explain(synced, this).causes]
    named = kinds[:1] == ["accumulation_without_no_sync"]
    yield Check(scenario, "accumulation without no_sync is the first cause", named, str(kinds))


def check_stuck(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check who waits for whom, while the job runs and afterwards."""
    recorded = runs[f"{scenario} recorded"]
    late, others = recorded.ranks - 1, list(range(recorded.ranks - 1))
    planted_ns = int((recorded.folder / "out" / "planted").read_text())
    seen = [each for each in read_events(recorded.run) if each["event"] == SEEN]
    alarms = [each for each in seen if each["verdict"]["level"] == ALARM]
    after_s = (alarms[0]["time_ns"] - planted_ns) / 1e9 if alarms else float("inf")
    in_time = 0 < after_s <= HANG_AFTER_S + TICK_S
    yield Check(scenario, "the hang is reported in time", in_time, f"after {after_s:.1f} s")
    account = ask("why", recorded.run)
    yield Check(
        scenario, "`profkit why` says that it hung", account["state"] == "hung", account["headline"]
    )
    verdicts = {"while it runs": alarms[0]["verdict"], "afterwards": account["verdict"] or {}}
    for when, verdict in verdicts.items():
        place = dict(verdict.get("places") or {}).get(str(late)) or {}
        found = [verdict.get(key) for key in ("class", "ranks", "waiting")]
        is_right = found == ["never entered", [late], others]
        is_right &= str(place.get("function")) == "stand_still"
        yield Check(scenario, f"who waits for whom, {when}", is_right, str(verdict.get("text")))


USUAL = (check_losses, check_collectives, check_kernels)
CHECKS: dict[str, tuple[Callable[[str, Runs], Iterator[Check]], ...]] = {
    "ddp": USUAL,
    "late": (*USUAL, check_late),
    "no_sync": USUAL,
    "every_sync": (*USUAL, check_accumulation),
    "fsdp2": USUAL,
    "stuck": (check_stuck,),
}
