"""Plant faults into small sharded jobs, and compare what `explain` says with the jobs' own clocks.

    python benchmarks/sharded_faults.py run --work FOLDER [--only NAME,NAME]
    python benchmarks/sharded_faults.py score --work FOLDER [--write]

Each fault is a pair of jobs (`sharded_faults_job.py`) that differ in their options alone. Both are
recorded three times, in turns, and compared as repeats. The truth is measured without profkit:
another launch trains both jobs in turn, step by step, so that they meet the same state of the
machine. It is by how much the steps of the second are longer by the launch's own clock. Held-out
faults have another model, rank or dimension. `run` skips what FOLDER has already; `score --write`
writes docs/results/sharded.json. It exits with 1 if the goals are missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import results

from profkit.explain.explained import explain_repeats
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "sharded_faults_job.py"
PATIENCE_S = 300
SETTLED = 10
"""The first steps of a job are slower."""
REPEATS = 3
STEPS_OF_BOTH = 230
"""The steps of two jobs together. With 70, some costs were known to within a third only."""
BASE, TARGET, TRUTH = "base", "target", "truth"
Z_95, RIGHT_GOAL, COST_GOAL = 1.96, 0.9, 0.15
MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)
"""The error of a median is so many times that of a mean."""
HELD_OUT = "held-out: "


@dataclass(frozen=True)
class Fault:
    """Two jobs; `kinds` are the causes that name the fault. A pair without any is healthy."""

    kind: str
    ranks: int
    base: tuple[str, ...]
    more: tuple[str, ...]
    """The options of the second job, besides those of the first."""
    kinds: frozenset[str]


def named(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


def words(options: str) -> tuple[str, ...]:
    return tuple(options.split())


_PLANTED: Mapping[str, tuple[str, int, str, str, frozenset[str]]] = {
    "nothing": ("fsdp", 2, "--sleep-ms 12", "--steps 81", named()),
    "late rank in one dimension": (
        "hsdp", 4, "--sleep-ms 12", "--late-ms 25", named("late_rank")
    ),
    "uneven stages": ("pp", 2, "--sleep-ms 40", "--first-stage 3", named("uneven_stages")),
    "long last stage": ("pp", 2, "--sleep-ms 30", "--first-stage 1", named("long_last_stage")),
    "slow module": ("fsdp", 2, "--sleep-ms 12", "--slow-layer-ms 25", named("slow_module")),
    "slow module on one rank": (
        "fsdp", 2, "--sleep-ms 12 --slow-rank 1", "--slow-layer-ms 25", named("slow_module")
    ),
    "weights gathered again": (
        "fsdp", 2, "--width 512 --sleep-ms 2", "--reshard", named("regathered_weights")
    ),
    "small units": (
        "fsdp", 2, "--layers 16 --sleep-ms 2 --units one", "--units small",
        named("tiny_collectives"),
    ),
    "no prefetch": (
        "fsdp", 2, "--layers 8 --width 512 --sleep-ms 14 --prefetch", "--no-prefetch",
        named("no_prefetch"),
    ),
    "longer sequences on one rank": (
        "fsdp", 2, "--sleep-ms 12", "--odd-length 24", named("uneven_lengths")
    ),
    "held-out: nothing": ("pp", 2, "--model attention --sleep-ms 30", "--steps 81", named()),
    "held-out: late first rank": (
        "fsdp", 2, "--model attention --odd-rank 0 --sleep-ms 12", "--late-ms 20",
        named("late_rank"),
    ),
    "held-out: late rank among tensors": (
        "tp", 2, "--layers 3 --odd-rank 0 --sleep-ms 16", "--late-ms 22", named("late_rank")
    ),
    "held-out: late stage": (
        "pp", 2, "--model attention --odd-rank 0 --sleep-ms 30", "--late-ms 25",
        named("late_rank", "time_outside_phases"),
    ),
    "held-out: uneven stages of attention": (
        "pp", 2, "--model attention --layers 6 --sleep-ms 25", "--first-stage 4",
        named("uneven_stages"),
    ),
    "held-out: slow last module": (
        "hsdp", 4, "--model attention --slow-layer 3 --sleep-ms 12", "--slow-layer-ms 24",
        named("slow_module"),
    ),
    "held-out: weights gathered again": (
        "hsdp", 4, "--model attention --width 448 --sleep-ms 3", "--reshard",
        named("regathered_weights"),
    ),
    "held-out: no prefetch": (
        "fsdp", 2, "--model attention --layers 10 --width 448 --sleep-ms 12 --prefetch",
        "--no-prefetch", named("no_prefetch"),
    ),
    "held-out: longer sequences on the first rank": (
        "fsdp", 2, "--model attention --odd-rank 0 --sleep-ms 12", "--odd-length 26",
        named("uneven_lengths"),
    ),
}  # fmt: skip
"""The kind of each job, its ranks, the options of both and of the second, and what names it."""


def _faults() -> Iterator[tuple[str, Fault]]:
    for name, (kind, ranks, both, more, kinds) in _PLANTED.items():
        yield name, Fault(kind, ranks, words(both), words(more), kinds)


FAULTS: Mapping[str, Fault] = dict(_faults())
"""The planted faults."""

MAY_COME_TOO = frozenset({"setting_changed"})
"""The options of a pair differ, and this cause says no more than that."""


def folder_of(work: Path, name: str, side: str) -> Path:
    return work / name.replace(": ", "_").replace(" ", "_") / side


def torchrun(job: Path, ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs a script on so many ranks of this machine."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, *launcher, str(job), *arguments]


def record_into(runs: Path, command: Sequence[str]) -> list[str]:
    """Return the command that records another one, without collectors."""
    options = ["--output", str(runs), "--collect", "none"]
    return [sys.executable, "-m", "profkit", "run", *options, "--", *command]


def start(command: Sequence[str], what: str, **variables: str) -> str:
    """Run a command on the CPU and return its output; one that fails ends the benchmark."""
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise SystemExit(f"{what}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def is_done(work: Path, name: str) -> bool:
    """Return true if all runs of a fault are there; the truth comes last."""
    return (folder_of(work, name, TRUTH) / "done").exists()


def once(folder: Path, launch: Callable[[Path], object]) -> None:
    """Launch a job into its folder, unless it is there already."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir(parents=True)
    launch(folder)
    (folder / "done").touch()
    print(folder, flush=True)


def launch(fault: Fault, options: Sequence[str], folder: Path) -> None:
    """Record a job."""
    job = torchrun(JOB, fault.ranks, fault.kind, "--out", str(folder / "out"), *options)
    start(record_into(folder / "runs", job), str(folder))


def launch_both(fault: Fault, folder: Path) -> None:
    """Train both jobs in turn, without profkit."""
    versus = f"--versus={' '.join(fault.more)} --steps {STEPS_OF_BOTH}"
    both = (*fault.base, versus, "--steps", str(STEPS_OF_BOTH))
    start(torchrun(JOB, fault.ranks, fault.kind, "--out", str(folder / "out"), *both), str(folder))


def run(work: Path, names: Sequence[str]) -> None:
    """Record the missing jobs."""
    for name in names:
        fault = FAULTS[name]
        sides = (BASE, fault.base), (TARGET, (*fault.base, *fault.more))
        for number in range(REPEATS):
            for side, options in sides if number % 2 == 0 else reversed(sides):
                folder = folder_of(work, name, f"{side}-{number}")
                once(folder, functools.partial(launch, fault, options))
        once(folder_of(work, name, TRUTH), functools.partial(launch_both, fault))


def own_lengths(folder: Path) -> Iterator[list[int]]:
    """Yield the settled steps of each rank, in ns by the job's own clock."""
    for path in sorted((folder / "out").glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))[SETTLED:]


def own_median_ns(folder: Path) -> float:
    """Return the median step of a job by its own clock, as a mean over the ranks."""
    return statistics.fmean(map(statistics.median, own_lengths(folder)))


def true_cost_ns(folder: Path) -> tuple[float, float]:
    """Return by how much the second job's median step is longer, and how far that may be off.

    Both are means over the ranks. Each step is compared with the one before it, of the first job.
    """
    found, margins = [], []
    for lengths in own_lengths(folder):
        first, second = lengths[::2], lengths[1::2]
        found.append(statistics.median(second) - statistics.median(first))
        longer = [after - before for before, after in zip(first, second, strict=False)]
        error = statistics.stdev(longer) / math.sqrt(len(longer))
        margins.append(Z_95 * MEDIAN_TO_MEAN * error)
    return statistics.fmean(found), statistics.fmean(margins)


@dataclass(frozen=True)
class Score:
    """What was said of one fault."""

    name: str
    true_ms: float
    true_margin_ms: float
    """Half of the interval of the truth."""
    pair_ms: float
    """By how much the recorded jobs' own median steps differ, as a mean over their repeats."""
    kinds: tuple[str, ...]
    cost_ms: float | None
    """The cost of the cause that names the fault."""
    is_right: bool

    @property
    def error(self) -> float | None:
        """The relative error of the cost."""
        return None if self.cost_ms is None else abs(self.cost_ms / self.true_ms - 1)

    @property
    def agrees(self) -> bool:
        """True if the recorded jobs themselves differ by as much as the truth says."""
        return abs(self.pair_ms / self.true_ms - 1) <= COST_GOAL


def score(name: str, work: Path) -> Score:
    """Compare what `explain` says of a fault with the truth; its cause must come first."""
    fault = FAULTS[name]
    medians: list[float] = []
    traces: list[list[Trace]] = []
    for side in (BASE, TARGET):
        folders = [folder_of(work, name, f"{side}-{number}") for number in range(REPEATS)]
        traces.append([Trace.open(find_runs(folder / "runs")[0]) for folder in folders])
        medians.append(statistics.fmean(map(own_median_ns, folders)) / 1e6)
    causes = []
    for cause in explain_repeats(traces[0], traces[1]).causes:
        if not cause.is_gain and cause.kind not in MAY_COME_TOO:
            causes.append(cause)
    is_right, cost_ms = not causes and not fault.kinds, None
    if causes and causes[0].kind in fault.kinds:
        is_right = True
        if causes[0].cost_ns is not None:
            cost_ms = causes[0].cost_ns.value / 1e6
    true_ms, margin_ms = (ns / 1e6 for ns in true_cost_ns(folder_of(work, name, TRUTH)))
    kinds = tuple(each.kind for each in causes)
    return Score(name, true_ms, margin_ms, medians[1] - medians[0], kinds, cost_ms, is_right)


def summarize(scores: Sequence[Score]) -> dict[str, Any]:
    """Return how often the goals are met, for faults of the development and held-out ones."""
    found: dict[str, Any] = {"goals": {"right cause first": RIGHT_GOAL, "error of cost": COST_GOAL}}
    for title, held_out in (("development", False), ("held-out", True)):
        own = [each for each in scores if each.name.startswith(HELD_OUT) is held_out]
        planted = [each for each in own if FAULTS[each.name].kinds]
        errors = [each.error for each in planted if each.error is not None]
        found[title] = {
            "planted": len(planted),
            "right cause first": sum(each.is_right for each in planted),
            "costs": len(errors),
            "costs within the goal": sum(error <= COST_GOAL for error in errors),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "score"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default=",".join(FAULTS), help="names of faults, with commas")
    parser.add_argument("--write", action="store_true", help="write docs/results/sharded.json")
    options = parser.parse_args()
    names = options.only.split(",")
    if options.verb == "run":
        run(options.work, names)
        return 0
    scores = [score(name, options.work) for name in names if is_done(options.work, name)]
    found = {**summarize(scores), "rows": [dataclasses.asdict(each) for each in scores]}
    print(json.dumps(found, indent=1))
    if options.write:
        results.write("sharded", found)
    errors = [each.error for each in scores if each.error is not None]
    is_right = sum(each.is_right for each in scores) >= RIGHT_GOAL * len(scores)
    return 0 if is_right and all(error <= COST_GOAL for error in errors) else 1


if __name__ == "__main__":
    sys.exit(main())
