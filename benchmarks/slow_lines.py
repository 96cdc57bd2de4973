"""Plant slow lines in three jobs, and check that the sampled stacks name them with their cost.

Each job (slow_line_jobs) is recorded once per slow line, with --stacks loop. It measures with its
own clock what the line costs each step. The slow line must come first among the lines of its
phase in the report, and among the lines that differ from a run without it in `explain`.

    python benchmarks/slow_lines.py run --work FOLDER [--job development] [--only sleep,lock]
    python benchmarks/slow_lines.py score --work FOLDER [--write]

`run` skips what FOLDER has already. `score --write` writes the table into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from page_sections import replace_section
from slow_lines_page import FIRST_GOAL, VARIANTS, Score, as_markdown

from profkit.analysis.estimate import Estimate
from profkit.analysis.line_changes import LineChange
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.stacks import LineTime
from profkit.explain.explained import explain
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOBS = Path(__file__).parent / "slow_line_jobs"
DOCUMENT = Path(__file__).parents[1] / "docs/accuracy.md"
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
BEGIN, END = "<!-- slow lines -->", "<!-- end of slow lines -->"
"""The marks around the part of docs/accuracy.md that this script writes."""


def record(job: str, plant: str, folder: Path) -> None:
    """Record one job in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir(parents=True)
    steps = BASE_STEPS
    program = [sys.executable, str(JOBS / f"{job}.py"), plant]
    if plant != NONE:
        _run([*program, str(TRIED_STEPS)], folder)
        usual_s = float(np.median(_read_costs(folder))) / 1e9
        steps = min(MOST_STEPS, max(FEWEST_STEPS, round(LINE_S / usual_s)))
        shutil.rmtree(folder)
        folder.mkdir()
    record = [sys.executable, "-m", "profkit", "run", "--stacks", "loop", "--"]
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


def score(job: str, plant: str, work: Path) -> Score:
    """Return what profkit says about one slow line."""
    base, target = (_open(work, job, name) for name in (NONE, plant))
    view = build_overview(target)
    line = _line_of(job, plant)
    costs = _read_costs(work / job / plant)
    used = [costs[step] for step in view.selection.steps.tolist() if step < len(costs)]
    found = list(_named(view, f"{job}.py", line))
    phase, is_first = "", False
    if found:
        phase, _, is_first = max(found, key=lambda each: each[1].step_ns.value)
    first = _first(view, phase)
    changes = explain(base, target).lines
    sure = [change for change in changes.lines if change.is_sure] if changes else []
    grown = [change for change in sure if change.difference.value > 0]
    skipped = [name for name, _, _ in changes.too_few] if changes else [phase]
    return Score(
        job,
        plant,
        line,
        float(np.mean(used)),
        first.place.words(view.code.folder if view.code else "") if first else "",
        phase,
        _sum([each.step_ns for _, each, _ in found]),
        _shown(grown, was_compared=phase not in skipped),
        is_first,
        bool(grown) and _is_at(grown[0], f"{job}.py", line),
    )


def _sum(times: Sequence[Estimate]) -> Estimate | None:
    """Return all time of a line, which may be in several phases; `None` if it is in none."""
    if not times:
        return None
    low, high = [time.low or 0.0 for time in times], [time.high or 0.0 for time in times]
    return Estimate(sum(time.value for time in times), sum(low), sum(high))


def _open(work: Path, job: str, plant: str) -> Trace:
    return Trace.open(find_runs(work / job / plant / "traces")[-1])


def _line_of(job: str, plant: str) -> int:
    lines = (JOBS / f"{job}.py").read_text().splitlines()
    marks = [number for number, line in enumerate(lines, 1) if f"# planted: {plant}" in line]
    if len(marks) != 1:
        raise SystemExit(f"{job}: {plant} is planted in {len(marks)} lines")
    return marks[0]


def _named(view: Overview, file: str, line: int) -> Iterator[tuple[str, LineTime, bool]]:
    """Yield the line in each phase, and if it is the first there."""
    for part in view.code.phases if view.code else ():
        for place, each in enumerate(part.lines):
            if each.place.line == line and each.place.file.endswith(file):
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


def _is_at(change: LineChange, file: str, line: int) -> bool:
    return change.place.line == line and change.place.file.endswith(file)


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
    parser.add_argument("--job", choices=VARIANTS, action="append", help="default: all")
    parser.add_argument("--only", default="", help="names of slow lines, separated by commas")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    args = parser.parse_args()
    plants = [name for name in PLANTS if not args.only or name in args.only.split(",")]
    jobs = args.job or VARIANTS
    if args.what == "run":
        for job in jobs:
            for plant in (NONE, *plants):
                folder = args.work.absolute() / job / plant
                if not (folder / COSTS).exists():
                    record(job, plant, folder)
        return 0
    scores: list[Score] = []
    missing: list[str] = []
    for job in jobs:
        for plant in plants:
            if all((args.work / job / name / COSTS).exists() for name in (NONE, plant)):
                scores.append(score(job, plant, args.work))
            else:
                missing.append(f"{plant} ({job.replace('_', '-')})")
    section = as_markdown(scores, LINE_S, missing)
    print(section)
    if args.write:
        DOCUMENT.write_text(replace_section(DOCUMENT.read_text(), section, BEGIN, END))
    return 0 if sum(each.is_first for each in scores) >= FIRST_GOAL * len(scores) else 1


if __name__ == "__main__":
    sys.exit(main())
