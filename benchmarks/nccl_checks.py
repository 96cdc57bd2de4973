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
FAILED = ("exits", "raises", "sizes")
"""Jobs of which one rank ends, or is ended, before the others."""
SIDES_OF = {
    "cost": ("bare", "recorded", "eye", "eye-again", "recorded-again", "bare-again"),
    "settings": ("recorded",),
    **dict.fromkeys(FAILED, ("recorded",)),
}
"""The sides of scenarios that have others."""
ONLY_NCCL = {"graph": "gloo takes no part in a graph of the device"}
"""Scenarios that gloo cannot rehearse, and why."""
CHANGED = {"NCCL_PROTO": "Simple", "TORCH_NCCL_TRACE_BUFFER_SIZE": "4000"}
"""What `settings` sets, and no other scenario."""
HANG_AFTER_S = 5
TICK_S = 2.0
"""The ranks look each second; then the verdict settles."""
SETTLED = 2
"""DDP's first step checks the model, and its second begins with other buckets."""
COST_GOAL = 0.15
ADDED_GOAL, ADDED_GOAL_MS = 0.01, 0.15
"""Recording makes a step longer by at most the larger of both."""
TIME_GOAL, TIME_GOAL_MS = 0.02, 0.1
"""A recorded step differs from the job's own clock by at most the larger of both."""
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
        """Return the median step by the job's own clock, as a mean over the ranks."""
        medians = [statistics.median(each["step_ns"][SETTLED:]) for each in self.results]
        return statistics.fmean(medians) / 1e6


Runs = Mapping[str, Ran]
"""The jobs that were run, by scenario and side."""

Steps = dict[tuple[int, int], list[dict[str, Any]]]
"""The collectives of a rank's step, in their order."""


def check_both(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that recording has not changed how the job ends."""
    codes = [runs[f"{scenario} {side}"].code for side in sides_of(scenario)]
    right = 1 if scenario in ("stuck", *FAILED) else 0
    yield Check(scenario, "exit codes", set(codes) == {right}, f"{codes}, must be {right}")


def sides_of(scenario: str) -> tuple[str, ...]:
    return SIDES_OF.get(scenario, SIDES)


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


def ask(verb: str, *runs: Path) -> dict[str, Any]:
    """Return what profkit says of a run, or of two."""
    command = [sys.executable, "-m", "profkit", verb, *map(str, runs), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_accumulation(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that a job which exchanges gradients after each backward is told so."""
    synced, this = (runs[f"{name} recorded"].trace for name in ("no_sync", scenario))
    kinds = [cause.kind for cause in explain(synced, this).causes]
    named = kinds[:1] == ["accumulation_without_no_sync"]
    yield Check(scenario, "accumulation without no_sync is the first cause", named, str(kinds))


def alarms_of(recorded: Ran) -> list[dict[str, Any]]:
    """Return the alarms that came after the fault; jobs may stand still as they begin."""
    planted_ns = int((recorded.folder / "out" / "planted").read_text())
    seen = [each for each in read_events(recorded.run) if each["event"] == SEEN]
    after = [each for each in seen if each["time_ns"] > planted_ns]
    return [each for each in after if each["verdict"]["level"] == ALARM]


def check_alarm(scenario: str, recorded: Ran) -> Iterator[Check]:
    """Check that a hang is reported in time."""
    planted_ns = int((recorded.folder / "out" / "planted").read_text())
    alarms, after_s = alarms_of(recorded), float("inf")
    if alarms:
        after_s = (alarms[0]["time_ns"] - planted_ns) / 1e9
    in_time = 0 < after_s <= HANG_AFTER_S + TICK_S
    yield Check(scenario, "the hang is reported in time", in_time, f"after {after_s:.1f} s")


def check_stuck(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check who waits for whom, while the job runs and afterwards."""
    recorded = runs[f"{scenario} recorded"]
    late, others = recorded.ranks - 1, list(range(recorded.ranks - 1))
    yield from check_alarm(scenario, recorded)
    alarms = alarms_of(recorded)
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


def check_places(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check the dimension of each collective, and the module of those that carry weights."""
    recorded, wrong = runs[f"{scenario} recorded"], []
    dimension = DIMENSIONS[scenario]
    steps = collectives_by_step(recorded.trace)
    for (rank, step), rows in steps.items():
        seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            if row["module"] is not None:
                seen[row["op"]][row["module"]] += 1
        others = {str(row["dimension"]) for row in rows} - {dimension}
        if others or seen != MODULES.get(scenario, {}):
            wrong.append(f"rank {rank} step {step}: {sorted(others)} {dict(seen)}")
    what = f"dimension {dimension}, and the modules"
    detail = f"{len(wrong)} of {len(steps)} steps wrong {'; '.join(wrong[:2])}".strip()
    yield Check(scenario, what, bool(steps) and not wrong, detail)


def check_microbatches(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that each part of a batch is sent once, and that each message is received."""
    steps = collectives_by_step(runs[f"{scenario} recorded"].trace)
    wrong = []
    for (rank, step), rows in steps.items():
        seen = Counter((row["op"], row["microbatch"]) for row in rows)
        parts = Counter(part for _, part in seen)
        if None in parts or len(set(seen.values())) != 1:
            wrong.append(f"rank {rank} step {step}: {dict(seen)}")
    words = f"{len(wrong)} of {len(steps)} steps wrong {'; '.join(wrong[:1])}".strip()
    yield Check(scenario, "messages have their microbatch", bool(steps) and not wrong, words)


def check_time(scenario: str, runs: Runs) -> Iterator[Check]:
    """Compare the length of the recorded steps with the job's own clock."""
    recorded = runs[f"{scenario} recorded"]
    for rank, result in enumerate(recorded.results):
        rows = [row for row in recorded.trace.steps.to_pylist() if row["rank"] == rank]
        rows = [row for row in rows if SETTLED <= row["step"] < len(result["step_ns"])]
        said = [row["end_ns"] - row["start_ns"] for row in rows]
        own = [result["step_ns"][row["step"]] for row in rows]
        said_ms, own_ms = statistics.fmean(said) / 1e6, statistics.fmean(own) / 1e6
        is_right = abs(said_ms - own_ms) <= max(TIME_GOAL * own_ms, TIME_GOAL_MS)
        words = f"{said_ms:.2f} ms in {len(rows)} steps, own clock {own_ms:.2f} ms"
        yield Check(scenario, f"no time of rank {rank} is lost", is_right, words)


def check_compiled(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that the run says that its model is compiled."""
    said = runs[f"{scenario} recorded"].trace.manifest.config.get("compile")
    yield Check(scenario, "the model is said to be compiled", said is True, str(said))


def check_graph(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that collectives are called until they are captured, and then run on the device."""
    for side in SIDES:
        for rank, result in enumerate(runs[f"{scenario} {side}"].results):
            counts = [len(kernels) for kernels in result["probe"]["kernels"].values()]
            is_right = counts == [result["replayed"]["kernels"]] * result["probed"]
            what = f"NCCL's kernels in replays of rank {rank}, {side}"
            yield Check(scenario, what, is_right, str(counts))
    recorded = runs[f"{scenario} recorded"]
    result = recorded.results[0]["replayed"]
    wrong, steps = [], collectives_by_step(recorded.trace)
    for (rank, step), rows in steps.items():
        expected = result["kernels"] if step < result["from_step"] else 0
        if step != result["from_step"] and len(rows) != expected:
            wrong.append(f"rank {rank} step {step}: {len(rows)}, not {expected}")
    words = f"{len(wrong)} of {len(steps)} wrong {'; '.join(wrong[:3])}".strip()
    yield Check(scenario, "calls before and after the capture", bool(steps) and not wrong, words)


def check_end(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that the end of a rank is reported, with what it said last."""
    recorded = runs[f"{scenario} recorded"]
    late = recorded.ranks - 1
    account = ask("why", recorded.run)
    verdict = account["verdict"] or {}
    text = str(verdict.get("text"))
    right = (verdict.get("class"), verdict.get("ranks")) == ("rank dead", [late])
    yield Check(scenario, "the rank that ended is named", right, account["headline"])
    is_said = any(f"rank {late} {words}" in text for words in ENDS[scenario])
    yield Check(scenario, "how it ended", is_said, text)
    waiting = set(verdict.get("waiting") or ())
    yield Check(scenario, "it waits for nobody", late not in waiting, str(sorted(waiting)))


def check_sizes(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that a collective whose sizes differ is said to be one; gloo aborts a rank in it."""
    recorded = runs[f"{scenario} recorded"]
    late = recorded.ranks - 1
    account = ask("why", recorded.run)
    verdict = account["verdict"] or {}
    kinds = ["mismatch"] if recorded.backend == "nccl" else ["mismatch", "rank dead"]
    named = verdict.get("class") in kinds
    if verdict.get("class") == "mismatch":
        named &= late in verdict["ranks"]
    yield Check(scenario, "the sizes differ", named, str(verdict.get("text")))
    place = dict(verdict.get("places") or {}).get(str(late)) or {}
    yield Check(scenario, "the line", place.get("function") == "exchange", str(place))
    if recorded.backend == "nccl":
        yield from check_alarm(scenario, recorded)


def check_cost(scenario: str, runs: Runs) -> Iterator[Check]:
    """Compare the steps of jobs that took turns, by how much two of the same side differ."""
    means, spreads = {}, {}
    for side in ("bare", "recorded", "eye"):
        both = [runs[f"{scenario} {name}"].step_ms() for name in (side, f"{side}-again")]
        means[side], spreads[side] = statistics.fmean(both), abs(both[0] - both[1])
    goal_ms = max(ADDED_GOAL * means["bare"], ADDED_GOAL_MS)
    for side, what in (("recorded", "recording"), ("eye", "recording with the eye")):
        added_ms = means[side] - means["bare"]
        spread_ms = spreads[side] + spreads["bare"]
        words = f"{added_ms:+.2f} ms (+-{spread_ms:.2f} ms) of {means['bare']:.2f} ms"
        if added_ms + spread_ms > goal_ms >= added_ms - spread_ms:
            words += ", inconclusive"
        title = f"{what} adds less than {goal_ms:.2f} ms"
        yield Check(scenario, title, added_ms - spread_ms <= goal_ms, words)


def check_settings(scenario: str, runs: Runs) -> Iterator[Check]:
    """Check that variables of NCCL are recorded, and that those that differ are said to."""
    recorded, base = runs[f"{scenario} recorded"], runs["ddp recorded"]
    wanted: dict[str, str] = dict(CHANGED)
    if recorded.backend == "nccl":
        wanted["NCCL_SOCKET_IFNAME"] = "lo"  # the job sets it itself
    for number, rank in enumerate(recorded.trace.ranks):
        found: Mapping[str, Any] = {} if rank.manifest is None else rank.manifest.environment
        said = {name: found.get("variables", {}).get(name) for name in wanted}
        yield Check(scenario, f"variables of rank {number}", said == wanted, str(said))
        if recorded.backend == "nccl":
            true = recorded.results[number]["nccl"]
            version = found.get("libraries", {}).get("nccl")
            is_right = version == ".".join(map(str, true))
            yield Check(scenario, f"NCCL's version on rank {number}", is_right, f"{version} {true}")
    compared = ask("explain", base.run, recorded.run)
    differ = {each["name"]: each["target"] for each in compared["differences"]}
    said = {name: differ.get(f"variables.{name}") for name in CHANGED}
    yield Check(scenario, "`explain` shows what differs", said == CHANGED, str(said))


DIMENSIONS = {"fsdp2": "fsdp", "tp": "tp", "pp": "pp", "experts": "ep"}
_BLOCKS = ("blocks.0", "blocks.1", "blocks.2")
MODULES = {
    "fsdp2": {
        "all_gather": {"(root)": 1, **dict.fromkeys(_BLOCKS, 2)},
        "reduce_scatter": dict.fromkeys(("(root)", *_BLOCKS), 1),
    }
}
"""The modules whose weights and gradients a step's collectives carry; the others carry none."""
ENDS = {
    "exits": ("ended with exit code 7", "is dead: its process"),
    "raises": ("ended with ValueError: a label is missing at nccl_job.py",),
}
"""How the last rank ends. Its exit code is not seen if its launcher reads it first."""

USUAL = (check_losses, check_collectives, check_kernels)
CHECKS: dict[str, tuple[Callable[[str, Runs], Iterator[Check]], ...]] = {
    "ddp": USUAL,
    "cost": (check_cost,),
    "tp": (*USUAL, check_places),
    "pp": (check_losses, check_collectives, check_places, check_microbatches),
    "experts": (*USUAL, check_places),
    "graph": (check_losses, check_graph, check_time),
    "compiled": (*USUAL, check_compiled, check_time),
    "exits": (check_end,),
    "raises": (check_end,),
    "sizes": (check_sizes,),
    "settings": (check_settings,),
    "late": (*USUAL, check_late),
    "no_sync": USUAL,
    "every_sync": (*USUAL, check_accumulation),
    "fsdp2": (*USUAL, check_places),
    "stuck": (check_stuck,),
}
