"""Plant slow lines in a job, and check that the sampled stacks name them with their cost.

The job (slow_line_jobs) is recorded once per slow line. It measures with its
own clock what the line costs each step. The slow line must come first among the lines of its
phase in the report, and among the lines that differ from a run without it in `explain`. The job
was written without knowledge of the analysis.

    python benchmarks/slow_lines.py run --work FOLDER [--only sleep,lock]
    python benchmarks/slow_lines.py score --work FOLDER [--write]

`run` skips what FOLDER has already. `score --write` writes docs/results/slow_lines.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results

from profkit.analysis.line_changes import LineChange
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.stacks import LineTime
from profkit.explain.explained import explain
from profkit.frame.estimate import Estimate
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "slow_line_jobs/slow_line_job.py"
FIRST_GOAL = 0.9
PLANTS = (
    *("sleep", "busy", "lock", "sync", "fsync", "average", "metric", "clip", "recompute"),
    *("callback", "collate", "import"),
)
NONE = "none"
COSTS = "planted.json"
TOO_FEW = "too few samples"
LINE_S = 10.0
"""How long the slow line takes in all of a run: about 200 samples are of it."""

FEWEST_STEPS, MOST_STEPS, TRIED_STEPS = 300, 12_000, 40
BASE_STEPS = 5_000
"""Steps without a slow line: they are short, and need as many samples."""

PATIENCE_S = 300


@dataclass(frozen=True)
class Score:
    """One slow line: what the report and `explain` say of it; times in ns per step."""

    plant: str
    line: int
    true_ns: float
    named: str
    phase: str
    named_ns: Estimate | None
    explained: str
    is_first: bool
    is_explained: bool

    @property
    def error(self) -> float | None:
        """The relative error of the cost; `None` if the line is not named at all."""
        return None if self.named_ns is None else self.named_ns.value / self.true_ns - 1


def record(plant: str, folder: Path) -> None:
    """Record the job in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir(parents=True)
    steps = BASE_STEPS
    program = [sys.executable, str(JOB), plant]
    if plant != NONE:
        _run([*program, str(TRIED_STEPS)], folder)
        usual_s = float(np.median(_read_costs(folder))) / 1e9
        steps = min(MOST_STEPS, max(FEWEST_STEPS, round(LINE_S / usual_s)))
        shutil.rmtree(folder)
        folder.mkdir()
    record = [sys.executable, "-m", "profkit", "run", "--"]
    _run([*record, *program, str(steps)], folder)


def _run(command: Sequence[str], folder: Path) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        words = " ".join(command)
        raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def _read_costs(folder: Path) -> list[float]:
    """Return what the slow line cost each step, in ns."""
    costs: list[float] = json.loads((folder / COSTS).read_text())
    return costs


def score(plant: str, work: Path) -> Score:
    """Return what profkit says about one slow line."""
    base, target = (_open(work, name) for name in (NONE, plant))
    view = build_overview(target)
    line = _line_of(plant)
    costs = _read_costs(work / plant)
    used = [costs[step] for step in view.selection.steps.tolist() if step < len(costs)]
    found = list(_named(view, line))
    phase, is_first = "", False
    if found:
        phase, _, is_first = max(found, key=lambda each: each[1].step_ns.value)
    first = _first(view, phase)
    changes = explain(base, target).lines
    sure = [change for change in changes.lines if change.is_sure] if changes else []
    grown = [change for change in sure if change.difference.value > 0]
    skipped = [name for name, _, _ in changes.too_few] if changes else [phase]
    return Score(
        plant,
        line,
        float(np.mean(used)),
        first.place.words(view.code.folder if view.code else "") if first else "",
        phase,
        _sum([each.step_ns for _, each, _ in found]),
        _shown(grown, was_compared=phase not in skipped),
        is_first,
        bool(grown) and _is_at(grown[0], line),
    )


def _sum(times: Sequence[Estimate]) -> Estimate | None:
    """Return all time of a line, which may be in several phases; `None` if it is in none."""
    if not times:
        return None
    low, high = [time.low or 0.0 for time in times], [time.high or 0.0 for time in times]
    return Estimate(sum(time.value for time in times), sum(low), sum(high))


def _open(work: Path, plant: str) -> Trace:
    return Trace.open(find_runs(work / plant / "traces")[-1])


def _line_of(plant: str) -> int:
    lines = JOB.read_text().splitlines()
    marks = [number for number, line in enumerate(lines, 1) if f"# planted: {plant}" in line]
    if len(marks) != 1:
        raise SystemExit(f"{plant} is planted in {len(marks)} lines")
    return marks[0]


def _named(view: Overview, line: int) -> Iterator[tuple[str, LineTime, bool]]:
    """Yield the line in each phase, and if it is the first there."""
    for part in view.code.phases if view.code else ():
        for place, each in enumerate(part.lines):
            if each.place.line == line and each.place.file.endswith(JOB.name):
                yield part.phase, each, place == 0


def _first(view: Overview, phase: str) -> LineTime | None:
    """Return the first line of a phase; without one, the longest of all phases."""
    firsts = {}
    for part in view.code.phases if view.code else ():
        if part.lines:
            firsts[part.phase] = part.lines[0]
    if phase in firsts:
        return firsts[phase]
    return max(firsts.values(), key=lambda line: line.step_ns.value, default=None)


def _is_at(change: LineChange, line: int) -> bool:
    return change.place.line == line and change.place.file.endswith(JOB.name)


def _shown(grown: Sequence[LineChange], *, was_compared: bool) -> str:
    if not grown:
        return "-" if was_compared else TOO_FEW
    place = grown[0].place
    return f"{Path(place.file).name}:{place.line}" if place.line else place.file


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("--work", type=Path, required=True, help="the folder of the recorded runs")
    parser.add_argument("--only", default="", help="names of slow lines, separated by commas")
    parser.add_argument("--write", action="store_true", help="write docs/results/slow_lines.json")
    args = parser.parse_args()
    plants = [name for name in PLANTS if not args.only or name in args.only.split(",")]
    work = args.work.absolute()
    if args.what == "run":
        for plant in (NONE, *plants):
            if not (work / plant / COSTS).exists():
                record(plant, work / plant)
        return 0
    there = [name for name in plants if (work / name / COSTS).exists()]
    scores = [score(name, work) for name in there]
    found: dict[str, Any] = {
        "planted": len(scores),
        "first in the report": sum(each.is_first for each in scores),
        "first in explain": sum(each.is_explained for each in scores),
        "rows": [{**dataclasses.asdict(each), "error": each.error} for each in scores],
    }
    print(json.dumps(found, indent=1))
    if args.write:
        results.write("slow_lines", found)
    return 0 if sum(each.is_first for each in scores) >= FIRST_GOAL * len(scores) else 1


if __name__ == "__main__":
    sys.exit(main())
