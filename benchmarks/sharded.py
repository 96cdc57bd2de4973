"""Compare the collectives, bytes and samples of sharded jobs with an independent probe.

Each job (`sharded_job.py`) runs twice. The bare job counts its collectives with torch's profiler,
which has nothing in common with profkit's hooks. The other is recorded. A collective counts as
seen if the recorded steps have as many of its operation as the bare steps. The bytes of each step
are compared with the closed form, samples with what the samplers drew, and losses bit by bit.

    python benchmarks/sharded.py run --work FOLDER [--only fsdp2-2,tp-2]
    python benchmarks/sharded.py score --work FOLDER [--write]

`run` skips what FOLDER has already. `score --write` writes the table into docs/accuracy.md. It
exits with 1 if a collective, a byte or a sample is wrong, or a loss differs.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import platform
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
from sharded_launch import Page, command_line, is_done, once, record_into, start, torchrun

from profkit.analysis.costs import RunCosts, run_costs
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.unknown_places import unknown_places
from profkit.trace import Trace
from profkit.trace.reader import find_runs
from profkit.trace.sharing import say_world

JOB = Path(__file__).parent / "sharded_job.py"


class Case(NamedTuple):
    """The kind of a job, its ranks, and the width of its model."""

    kind: str
    ranks: int
    width: int = 64


WIDE = 256
"""Steps of tens of milliseconds: what the loop does between phases is the same as in short ones."""

CASES: Mapping[str, Case] = {
    "ddp-2": Case("ddp", 2),
    "fsdp2-2": Case("fsdp2", 2),
    "fsdp2-4": Case("fsdp2", 4),
    "fsdp1-2": Case("fsdp1", 2),
    "hsdp-2x2": Case("hsdp", 4),
    "tp-2": Case("tp", 2),
    "pp-2": Case("pp", 2),
    "pp-2-wide": Case("pp", 2, WIDE),
    "interleaved-2": Case("interleaved", 2),
    "interleaved-2-wide": Case("interleaved", 2, WIDE),
}

STEPS, PROBED = 400, 4  # profkit is still starting in the first second, as 40 steps may take
SETTLED = 2
"""A pipeline sends the shapes of its messages in its first steps."""
UNKNOWN_GOAL, CLOSURE_GOAL = 0.05, 0.02
COST_RANKS = (1, 2)
Costs = Mapping[int, Mapping[str, Sequence[float]]]
"""By the number of ranks, what `sharded_cost.py` printed: each median with its interval."""
BEGIN, END = "<!-- sharded jobs -->", "<!-- end of sharded jobs -->"
"""The marks around the part of docs/accuracy.md that this script writes."""


@dataclass(frozen=True)
class Score:
    """The figures of one job, over all ranks."""

    case: str
    world: str
    seen: int
    probed: int
    """The collectives that torch's profiler counted in the bare job's last steps."""
    extra: int
    """Rows of these steps for which the profiler counted nothing."""
    wrong_bytes: int
    """Steps of a rank whose operations or bytes are not those of the closed form."""
    steps: int
    unmatched: int
    """Collectives that were not seen on each of their ranks, and exactly once."""
    samples: float
    true_samples: int
    unknown: float
    longest_unknown: str
    """The place of most of that time, with its share of a step."""
    closure: float
    """The step of the recorder's clock next to that of the job's own, as a relative difference."""
    equal_losses: bool

    @property
    def is_right(self) -> bool:
        return (
            self.seen == self.probed
            and not (self.extra or self.wrong_bytes or self.unmatched)
            and self.samples == self.true_samples
            and self.equal_losses
        )


def launch(case: str, folder: Path, *, recorded: bool) -> None:
    """Run a job, bare or recorded."""
    kind, ranks, width = CASES[case]
    probe = [] if recorded else ["--probe", str(PROBED)]
    out = ["--out", str(folder / "out"), "--steps", str(STEPS)]
    command = torchrun(JOB, ranks, kind, *out, *probe)
    if recorded:
        command = record_into(folder / "runs", command)
    start(command, case, SHARDED_WIDTH=str(width))


def run(work: Path, cases: Sequence[str]) -> None:
    """Run the missing jobs."""
    for case in cases:
        once(work / case / "bare", functools.partial(launch, case, recorded=False))
        once(work / case / "recorded", functools.partial(launch, case, recorded=True))
    for ranks in COST_RANKS:
        printed = start(torchrun(JOB.with_name("sharded_cost.py"), ranks), "cost")
        found = printed.strip().splitlines()[-1]
        (work / f"cost-{ranks}.json").write_text(found, encoding="utf-8")


def results_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    files = [folder / "out" / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def score(case: str, work: Path) -> Score:
    """Compare a recorded job with its bare twin."""
    ranks = CASES[case].ranks
    bare, recorded = (results_of(work / case / way, ranks) for way in ("bare", "recorded"))
    trace = Trace.open(next(iter(find_runs(work / case / "recorded" / "runs"))))
    rows: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in trace.collectives.to_pylist():
        if row["step"] is not None:
            rows[row["rank"], row["step"]].append(row)
    seen = probed = extra = wrong = steps = 0
    settled = recorded_steps(trace)
    for rank, result in enumerate(bare):
        expected = {op: tuple(numbers) for op, numbers in result["expected"].items()}
        found: Counter[str] = Counter()
        for step in settled:
            own = rows[rank, step]
            counts = Counter(row["op"] for row in own)
            size: Counter[str] = Counter()
            for row in own:
                size[row["op"]] += row["bytes"]
            wrong += {op: (counts[op], size[op]) for op in counts} != expected
            steps += 1
            if step in settled[-PROBED:]:
                found += counts
        counted = Counter(result["probe"])
        probed += counted.total()
        seen += (found & counted).total()
        extra += (found - counted).total()
    costs = run_costs(trace)
    return Score(
        case=case,
        world=say_world(ranks, trace.manifest.config),
        seen=seen,
        probed=probed,
        extra=extra,
        wrong_bytes=wrong,
        steps=steps,
        unmatched=count_unmatched(trace),
        samples=float(costs.samples.mean()),
        true_samples=bare[0]["samples_per_step"],
        unknown=float(costs.parts[UNKNOWN].sum() / costs.wall_ns.sum()),
        longest_unknown=name_longest(trace, costs),
        closure=compare_clocks(trace, recorded),
        equal_losses=all(a["losses"] == b["losses"] for a, b in zip(bare, recorded, strict=True)),
    )


def name_longest(trace: Trace, costs: RunCosts) -> str:
    """Return the place between two phases that most of the unknown time is at."""
    place = unknown_places(trace.steps, trace.spans, costs.selection.steps)[0]
    share = place.step_ns * costs.steps * costs.ranks / float(costs.wall_ns.sum())
    return f"{place.after} to {place.before} ({share:.1%})"


def recorded_steps(trace: Trace) -> list[int]:
    """Return the settled steps with recording on; control steps have no rows on purpose."""
    off = trace.steps.filter(pc.invert(trace.steps["instrumented"]))["step"].to_pylist()
    return [step for step in range(SETTLED, STEPS) if step not in set(off)]


def count_unmatched(trace: Trace) -> int:
    ranks: dict[tuple[str, int], list[int]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for row in trace.collectives.to_pylist():
        key = row["communicator"], row["sequence"]
        ranks.setdefault(key, []).append(row["rank"])
        sizes[key] = row["group_size"]
    whole = sum(len(found) == len(set(found)) == sizes[key] for key, found in ranks.items())
    return len(ranks) - whole


def compare_clocks(trace: Trace, results: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest difference of a rank's mean step from what its own clock measured."""
    found: list[float] = []
    for rank, result in enumerate(results):
        own_ns = statistics.mean(result["step_ns"][SETTLED:])
        steps = [row for row in trace.steps.to_pylist() if row["rank"] == rank]
        lengths = [row["end_ns"] - row["start_ns"] for row in steps if row["step"] >= SETTLED]
        found.append(statistics.mean(lengths) / own_ns - 1)
    return max(found, key=abs)


def as_markdown(scores: Sequence[Score], missing: Sequence[str], costs: Costs) -> str:
    """Return the section of docs/accuracy.md."""
    head = (
        "| job | world | collectives seen | rows too many | steps with wrong bytes | not on all "
        "ranks | samples per step | unknown | most of it | clock | losses |"
    )
    lines = [head, "|" + "---|" * 11]
    for each in scores:
        share = f"{each.seen} of {each.probed}"
        cells = [
            each.case,
            each.world,
            share,
            str(each.extra),
            f"{each.wrong_bytes} of {each.steps}",
            str(each.unmatched),
            f"{each.samples:g} of {each.true_samples}",
            f"{each.unknown:.1%}",
            each.longest_unknown,
            f"{each.closure:+.2%}",
            "equal" if each.equal_losses else "differ",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    day = dt.datetime.now(dt.timezone.utc).date()
    opening = (
        f"Small sharded jobs run over gloo on the CPU, bare and recorded ({STEPS} steps, "
        "`benchmarks/sharded.py`). *Collectives seen*: those of the bare job's last "
        f"{PROBED} steps by torch's profiler, on all ranks, that the last recorded steps have, "
        "too. Control steps (recording off) are excluded. "
        f"*wide*: models {WIDE} wide instead of 64. "
        "*Wrong bytes*: steps of a rank whose operations or bytes differ from the closed form. "
        f"*Unknown* (goal: at most {UNKNOWN_GOAL:.0%}) is the share of a step that no phase "
        "covers, and *most of it* the phases around the largest part of it. *Clock* (goal: within "
        f"{CLOSURE_GOAL:.0%}) is the recorded step compared with the "
        f"job's own clock. Written {day}, Python {platform.python_version()}, torch "
        f"{metadata.version('torch')}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} over "
        "the last 15 minutes. Not tested on several GPUs."
    )
    opening += f" Not run yet: {', '.join(missing)}." if missing else ""
    return "\n\n".join(["## Sharded jobs", opening, "\n".join(lines), *say_costs(costs)])


def say_costs(costs: Costs) -> Iterator[str]:
    """Yield what a recorded collective costs, next to other ways to see it."""
    if not costs:
        return
    yield (
        "What is added to one `all_reduce` of 64 bytes over gloo, by blocks of calls that "
        "alternate in one process (`benchmarks/sharded_cost.py`): wall time, and processor "
        "time of all threads, with 95 % intervals. The goal is 1.5 us, which is 0.15 ms per step "
        "of 100 collectives. *Nothing* and *reading*: hooks of process groups that do nothing, and "
        "that only read what a row is made of."
    )
    head = "| ranks | call | clock | bare | profkit | nothing | reading | torch's profiler |"
    lines = [head, "|" + "---|" * 8]
    for ranks, cost in costs.items():
        for kind in ("waits", "asynchronous"):
            for clock in ("wall", "processor"):
                cells = [str(ranks), kind, clock, f"{cost[f'{kind}_bare_{clock}_us'][0]:.0f} us"]
                for way in ("profkit", "empty", "reading", "profiler"):
                    value, low, high = cost[f"{kind}_{way}_{clock}_us"]
                    cells.append(f"{value:+.1f} us ({low:+.1f} to {high:+.1f})")
                lines.append(f"| {' | '.join(cells)} |")
    yield "\n".join(lines)


def report(work: Path, cases: Sequence[str]) -> tuple[str, bool]:
    """Return the section of docs/accuracy.md, and true if all jobs that were run are right."""
    there = [case for case in cases if is_done(work / case / "recorded")]
    scores = [score(case, work) for case in there]
    measured = {ranks: work / f"cost-{ranks}.json" for ranks in COST_RANKS}
    costs = {n: json.loads(file.read_text()) for n, file in measured.items() if file.exists()}
    section = as_markdown(scores, [case for case in cases if case not in there], costs)
    return section, all(each.is_right for each in scores)


if __name__ == "__main__":
    sys.exit(command_line(Page(__doc__ or "", [*CASES], BEGIN, END), run, report))
