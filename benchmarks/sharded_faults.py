"""Plant faults into small sharded jobs, and compare what `explain` says with the jobs' own clocks.

    python benchmarks/sharded_faults.py run --work FOLDER [--only NAME,NAME]
    python benchmarks/sharded_faults.py score --work FOLDER [--write]

Each fault is a pair of jobs (`sharded_faults_job.py`) that differ in its options alone. Both are
recorded. The truth is by how much the steps of the second are longer by the jobs' own clock. The
held-out faults have another model, and are on another rank or in another dimension than those that
the rules were developed with. `run` skips what FOLDER has already; `score --write` writes the table
into docs/accuracy.md. It exits with 1 if the goals are missed.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharded_launch import Page, command_line, is_done, once, record_into, start, torchrun

from profkit.explain.explained import explain
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "sharded_faults_job.py"
BEGIN, END = "<!-- faults of sharded jobs -->", "<!-- end of faults of sharded jobs -->"
SETTLED = 10
"""The first steps of a job are slower."""
RIGHT_GOAL, COST_GOAL = 0.9, 0.15
HELD_OUT = "held-out: "


@dataclass(frozen=True)
class Fault:
    """Two jobs; `kinds` are the causes that name the fault, and `row` the one where it is.

    A pair with neither differs in nothing.
    """

    kind: str
    ranks: int
    base: tuple[str, ...]
    more: tuple[str, ...]
    """The options of the second job, besides those of the first."""
    kinds: frozenset[str] = frozenset()
    row: str = ""

    @property
    def is_planted(self) -> bool:
        return bool(self.kinds or self.row)


def named(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


def words(options: str) -> tuple[str, ...]:
    return tuple(options.split())


_PLANTED: Mapping[str, tuple[str, int, str, str, frozenset[str] | str]] = {
    "nothing": ("fsdp", 2, "", "--steps 41", ""),
    "late rank in one dimension": ("hsdp", 4, "", "--late-ms 15", named("late_rank")),
    "uneven stages": ("pp", 2, "--sleep-ms 40", "--first-stage 3", named("uneven_stages")),
    "long last stage": ("pp", 2, "--sleep-ms 30", "--first-stage 1", named("long_last_stage")),
    "slow module": ("fsdp", 2, "", "--slow-layer-ms 10", "forward"),
    "weights gathered again": (
        "fsdp", 2, "--width 384 --sleep-ms 2", "--reshard", named("regathered_weights")
    ),
    "small units": (
        "fsdp", 2, "--layers 8 --sleep-ms 1 --units one", "--units small", named("tiny_collectives")
    ),
    "no prefetch": (
        "fsdp", 2, "--width 384 --sleep-ms 10 --prefetch", "--no-prefetch", named("no_prefetch")
    ),
    "longer sequences on one rank": ("fsdp", 2, "", "--odd-length 32", named("uneven_lengths")),
    "held-out: nothing": ("pp", 2, "--model attention", "--steps 41", ""),
    "held-out: late first rank": (
        "fsdp", 2, "--model attention --odd-rank 0", "--late-ms 12", named("late_rank")
    ),
    "held-out: late rank among tensors": (
        "tp", 2, "--layers 3 --odd-rank 0", "--late-ms 18", named("late_rank")
    ),
    "held-out: late stage": (
        "pp", 2, "--model attention --odd-rank 0", "--late-ms 25",
        named("late_rank", "time_outside_phases"),
    ),
    "held-out: uneven stages of attention": (
        "pp", 2, "--model attention --layers 6 --sleep-ms 25", "--first-stage 4",
        named("uneven_stages"),
    ),
    "held-out: slow last module": (
        "hsdp", 4, "--model attention --slow-layer 3", "--slow-layer-ms 14", "forward"
    ),
    "held-out: weights gathered again": (
        "hsdp", 4, "--model attention --width 320 --sleep-ms 3", "--reshard",
        named("regathered_weights"),
    ),
    "held-out: no prefetch": (
        "fsdp", 2, "--model attention --layers 6 --width 320 --sleep-ms 8 --prefetch",
        "--no-prefetch", named("no_prefetch"),
    ),
    "held-out: longer sequences on the first rank": (
        "fsdp", 2, "--model attention --odd-rank 0", "--odd-length 40", named("uneven_lengths")
    ),
}  # fmt: skip
"""The kind of each job, its ranks, the options of both and of the second, and what names it."""


def _faults() -> Iterator[tuple[str, Fault]]:
    for name, (kind, ranks, both, more, found) in _PLANTED.items():
        options = words(both), words(more)
        if isinstance(found, frozenset):
            yield name, Fault(kind, ranks, *options, kinds=found)
        else:
            yield name, Fault(kind, ranks, *options, row=found)


FAULTS: Mapping[str, Fault] = dict(_faults())
"""The planted faults."""

MAY_COME_TOO = frozenset({"setting_changed"})
"""The options of a pair differ, and this cause says no more than that."""


def folder_of(work: Path, name: str, side: str) -> Path:
    return work / name.replace(": ", "_").replace(" ", "_") / side


def launch(fault: Fault, options: Sequence[str], folder: Path) -> None:
    """Record a job."""
    job = torchrun(JOB, fault.ranks, fault.kind, "--out", str(folder / "out"), *options)
    start(record_into(folder / "runs", job), str(folder))


def run(work: Path, names: Sequence[str]) -> None:
    """Record the missing jobs."""
    for name in names:
        fault = FAULTS[name]
        for side, options in (("base", fault.base), ("target", (*fault.base, *fault.more))):
            once(folder_of(work, name, side), functools.partial(launch, fault, options))


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

    @property
    def error(self) -> float | None:
        """The relative error of the cost."""
        return None if self.cost_ms is None else abs(self.cost_ms / self.true_ms - 1)


def score(name: str, work: Path) -> Score:
    """Compare what `explain` says of a fault with the jobs' own clocks.

    The first cause must be the planted one. A slow module has no cause: its row must grow most.
    """
    fault, folders = FAULTS[name], [folder_of(work, name, side) for side in ("base", "target")]
    base, target = (Trace.open(find_runs(folder / "runs")[0]) for folder in folders)
    found = explain(base, target)
    true_ns = own_step_ns(folders[1]) - own_step_ns(folders[0])
    causes = [cause for cause in found.causes if not cause.is_gain]
    causes = [cause for cause in causes if cause.kind not in MAY_COME_TOO]
    cost_ns, row = None, found.ledger.find(fault.row)
    if fault.kinds and causes and causes[0].kind in fault.kinds:
        if causes[0].cost_ns is not None:
            cost_ns = causes[0].cost_ns.value
        is_right = True
    elif row is not None:
        cost_ns = row.delta.value * found.ledger.samples_per_step
        is_right = not causes and found.ledger.largest is row
    else:
        is_right = not causes and not fault.is_planted
    cost_ms = None if cost_ns is None else cost_ns / 1e6
    return Score(name, true_ns / 1e6, tuple(each.kind for each in causes), cost_ms, is_right)


def as_markdown(scores: Sequence[Score]) -> str:
    """Return the section of docs/accuracy.md."""
    lines = ["| planted | named | cost | true cost | error | |", "|---|---|---|---|---|---|"]
    for each in scores:
        cost = "-" if each.cost_ms is None else f"{each.cost_ms:.1f} ms"
        error = "-" if each.error is None else f"{each.error:.0%}"
        verdict = "right" if each.is_right else "wrong"
        names = ", ".join(each.kinds) or "nothing"
        cells = (each.name, names, cost, f"{each.true_ms:.1f} ms", error, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    noise_ms = [abs(each.true_ms) for each in scores if not FAULTS[each.name].is_planted]
    load = os.getloadavg()[2]
    opening = (
        "Pairs of small sharded jobs over gloo on the CPU, of which one has a fault "
        "(`benchmarks/sharded_faults.py`). The true cost is the difference of their median steps "
        "by their own clocks. A slow module has no cause: the growth of its row is the cost. "
        "Held-out faults have another model, rank or dimension. "
        f"Pairs without a fault differ by up to {max(noise_ms, default=0.0):.1f} ms: the true "
        f"costs are not known more exactly. {os.cpu_count()} cores, load average {load:.1f} over "
        "the last 15 minutes."
    )
    return "\n\n".join(["## Faults of sharded jobs", opening, say_goals(scores), "\n".join(lines)])


def say_goals(scores: Sequence[Score]) -> str:
    """Return how often the goals are met, for faults of the development and held-out ones."""
    lines = ["|  | goal | development | held-out |", "|---|---|---|---|"]
    right, near = [], []
    for held_out in (False, True):
        own = [each for each in scores if each.name.startswith(HELD_OUT) is held_out]
        planted = [each for each in own if FAULTS[each.name].is_planted]
        errors = [each.error for each in planted if each.error is not None]
        right.append(f"{sum(each.is_right for each in planted)} of {len(planted)}")
        near.append(f"{sum(error <= COST_GOAL for error in errors)} of {len(errors)}")
    lines.append(f"| right cause first | {RIGHT_GOAL:.0%} | {' | '.join(right)} |")
    lines.append(f"| cost within {COST_GOAL:.0%} of the truth | all | {' | '.join(near)} |")
    return "\n".join(lines)


def report(work: Path, names: Sequence[str]) -> tuple[str, bool]:
    """Return the section of docs/accuracy.md, and true if the goals are met."""
    scores = [score(name, work) for name in names if is_done(folder_of(work, name, "target"))]
    is_right = sum(each.is_right for each in scores) >= RIGHT_GOAL * len(scores)
    errors = [each.error for each in scores if each.error is not None]
    return as_markdown(scores), is_right and all(error <= COST_GOAL for error in errors)


if __name__ == "__main__":
    sys.exit(command_line(Page(__doc__ or "", [*FAULTS], BEGIN, END), run, report))
