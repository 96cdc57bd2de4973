"""Plant faults into small sharded jobs, and compare what `explain` says with the jobs' own clocks.

    python benchmarks/sharded_faults.py run --work FOLDER [--only NAME,NAME]
    python benchmarks/sharded_faults.py score --work FOLDER [--write]

Each fault is a pair of jobs (`sharded_faults_job.py`) that differ in its options alone. Both are
recorded. The truth is by how much the steps of the second are longer by the jobs' own clock. `run`
skips what FOLDER has already; `score --write` writes the table into docs/accuracy.md. It exits with
1 if a fault is not named, or something else is named in its place.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slow_lines import replace_section

from profkit.explain.explained import explain
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "sharded_faults_job.py"
DOCUMENT = Path(__file__).parents[1] / "docs/accuracy.md"
BEGIN, END = "<!-- faults of sharded jobs -->", "<!-- end of faults of sharded jobs -->"
PATIENCE_S = 300
SETTLED = 10
"""The first steps of a job are slower."""


@dataclass(frozen=True)
class Fault:
    """Two jobs; `kinds` are the causes that name the fault, and `row` the one where it is."""

    kind: str
    ranks: int
    base: tuple[str, ...]
    target: tuple[str, ...]
    kinds: frozenset[str]
    row: str = ""

    def __post_init__(self) -> None:
        assert self.kinds or self.row


def named(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


_WIDE = ("--width", "384", "--sleep-ms", "2")
FAULTS: Mapping[str, Fault] = {
    "nothing": Fault("fsdp", 2, (), ("--steps", "41"), frozenset(), "nothing"),
    "late rank in one dimension": Fault(
        "hsdp", 4, (), ("--late-ms", "15"), named("late_rank"), "allreduce"
    ),
    "uneven stages": Fault(
        "pp", 2, ("--sleep-ms", "40"), ("--sleep-ms", "40", "--first-stage", "3"),
        named("uneven_stages"),
    ),
    "slow module": Fault("fsdp", 2, (), ("--slow-layer-ms", "10"), frozenset(), "forward"),
    "weights gathered again": Fault(
        "fsdp", 2, _WIDE, (*_WIDE, "--reshard"), named("regathered_weights")
    ),
    "more microbatches": Fault(
        "pp", 2, ("--microbatches", "2"), ("--microbatches", "8"),
        named("tiny_collectives", "setting_changed"),
    ),
    "small units": Fault(
        "fsdp", 2, ("--layers", "8", "--sleep-ms", "1", "--one-unit"),
        ("--layers", "8", "--sleep-ms", "1", "--small-units"), named("tiny_collectives"),
    ),
    "no prefetch": Fault(
        "fsdp", 2, ("--width", "384", "--sleep-ms", "10", "--prefetch"),
        ("--width", "384", "--sleep-ms", "10"), named("no_prefetch"),
    ),
    "longer sequences on one rank": Fault(
        "fsdp", 2, (), ("--length-of-last", "32"), named("uneven_lengths")
    ),
}  # fmt: skip
"""The planted faults. Weights are kept after forward, unless a fault says otherwise."""

MAY_COME_TOO = frozenset({"setting_changed"})
"""The options of a pair differ, and this cause says no more than that."""


def launch(fault: Fault, options: Sequence[str], folder: Path) -> None:
    """Record a job."""
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir(parents=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", str(fault.ranks)]
    job = [sys.executable, *torchrun, str(JOB), fault.kind, "--out", str(folder / "out"), *options]
    runs = ["--output", str(folder / "runs"), "--collect", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "profkit", "run", *runs, "--", *job],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise SystemExit(f"{folder}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    (folder / "done").touch()


def run(work: Path, names: Sequence[str]) -> None:
    """Record the missing jobs."""
    for name in names:
        fault = FAULTS[name]
        for side, options in (("base", fault.base), ("target", fault.target)):
            folder = work / name.replace(" ", "_") / side
            if not (folder / "done").exists():
                launch(fault, options, folder)
                print(f"{name}: {side}", flush=True)


def own_step_ns(folder: Path) -> float:
    """Return the median step by the job's own clock, as the mean over its ranks."""
    medians = []
    for path in sorted((folder / "out").glob("*.json")):
        lengths = json.loads(path.read_text(encoding="utf-8"))
        medians.append(statistics.median(lengths[SETTLED:]))
    return statistics.fmean(medians)


@dataclass(frozen=True)
class Score:
    """What was said of one fault."""

    name: str
    true_ms: float
    kinds: tuple[str, ...]
    cost_ms: float | None
    """The cost of the cause that names the fault, or the growth of its row."""
    is_right: bool


def score(name: str, work: Path) -> Score:
    folder, fault = work / name.replace(" ", "_"), FAULTS[name]
    base, target = (Trace.open(find_runs(folder / side / "runs")[0]) for side in ("base", "target"))
    found = explain(base, target)
    true_ns = own_step_ns(folder / "target") - own_step_ns(folder / "base")
    kinds = tuple(cause.kind for cause in found.causes if not cause.is_gain)
    cost_ns = None
    for cause in found.causes:
        if cause.kind in fault.kinds and cost_ns is None and cause.cost_ns is not None:
            cost_ns = cause.cost_ns.value
    others = {*kinds} - fault.kinds - MAY_COME_TOO
    is_right = not others and (not fault.kinds or cost_ns is not None)
    row = found.ledger.find(fault.row)
    if not fault.kinds and row is not None:
        cost_ns = row.delta.value * found.ledger.samples_per_step
        is_right &= found.ledger.largest is row
    cost_ms = None if cost_ns is None else cost_ns / 1e6
    return Score(name, true_ns / 1e6, kinds, cost_ms, is_right)


def as_markdown(scores: Sequence[Score]) -> str:
    """Return the section of docs/accuracy.md."""
    lines = ["| planted | named | cost | true cost | |", "|---|---|---|---|---|"]
    for each in scores:
        cost = "-" if each.cost_ms is None else f"{each.cost_ms:.1f} ms"
        verdict = "right" if each.is_right else "wrong"
        names = ", ".join(each.kinds) or "nothing"
        lines.append(f"| {each.name} | {names} | {cost} | {each.true_ms:.1f} ms | {verdict} |")
    load = os.getloadavg()[2]
    opening = (
        "Pairs of small sharded jobs over gloo on the CPU, of which one has a fault "
        "(`benchmarks/sharded_faults.py`). The true cost is the difference of their median steps "
        "by their own clocks. A slow module has no cause: the growth of its row is the cost. "
        f"{os.cpu_count()} cores, load average {load:.1f} over the last 15 minutes."
    )
    return "\n\n".join(["## Faults of sharded jobs", opening, "\n".join(lines)])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "score"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default=",".join(FAULTS), help="names of faults, with commas")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    options = parser.parse_args()
    names = options.only.split(",")
    if options.verb == "run":
        run(options.work, names)
        return 0
    there = [
        name
        for name in names
        if (options.work / name.replace(" ", "_") / "target" / "done").exists()
    ]
    scores = [score(name, options.work) for name in there]
    section = as_markdown(scores)
    print(section)
    if options.write:
        page = DOCUMENT.read_text(encoding="utf-8")
        page = replace_section(page, section + "\n", BEGIN, END)
        DOCUMENT.write_text(page, encoding="utf-8")
    return 0 if all(each.is_right for each in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
