"""Plant changes in the middle of runs; count those found, the delay, and false alarms.

    python benchmarks/midrun.py synthetic [--steps 2000000] [--noise FOLDER] [--write]
    python benchmarks/midrun.py run --work FOLDER [--only NAME,NAME]
    python benchmarks/midrun.py score --work FOLDER [--write]

`synthetic` draws step times with autocorrelated and heavy-tailed noise. `run` records real jobs
(`midrun_job.py`), `score` reads what `report` and `profkit run` said of them. `--write` writes the
tables into docs/midrun.md. Misses and false alarms are in them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from slow_lines import replace_section

from profkit.analysis.change_points import find_shifts
from profkit.analysis.overview import build_overview
from profkit.analysis.run_changes import find_changes
from profkit.analysis.run_halves import cut_at
from profkit.analysis.selection import steady_steps
from profkit.errors import ProfkitError
from profkit.explain.explained import explain
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "midrun_job.py"
DOCUMENT = Path(__file__).parents[1] / "docs/midrun.md"
PATIENCE_S, NEAR = 300, 15
"""A change counts as found if it is reported within so many steps."""

AT, STEPS, SEEDS = 200, 500, 20

Floats = npt.NDArray[np.float64]
Random = np.random.Generator


def autocorrelated(correlation: float) -> Callable[[int, Random], Floats]:
    """Return noise of 3 % with innovations of Student's t with four degrees of freedom."""

    def draw(count: int, random: Random) -> Floats:
        innovations = random.standard_t(4, count) / np.sqrt(2)
        innovations *= 0.03 * np.sqrt(1 - correlation**2)
        noise = np.empty(count)
        last = 0.0
        for place, each in enumerate(innovations.tolist()):
            last = correlation * last + each
            noise[place] = last
        return noise

    return draw


def _heavy(count: int, random: Random) -> Floats:
    return np.asarray(0.03 * random.standard_t(3, count) / np.sqrt(3))


def _slow_steps(count: int, random: Random) -> Floats:
    slow = random.random(count) < 0.05
    return np.asarray(0.02 * random.standard_normal(count) + slow * random.exponential(0.5, count))


def _two_modes(count: int, random: Random) -> Floats:
    return 0.01 * random.standard_normal(count) + 0.1 * (random.random(count) < 0.3)


def _regular(count: int, random: Random) -> Floats:
    noise = 0.02 * random.standard_normal(count)
    noise[::20] += 0.5
    return noise


NOISES: Mapping[str, Callable[[int, Random], Floats]] = {
    "independent, 3 %": autocorrelated(0.0),
    "correlation 0.6, 3 %": autocorrelated(0.6),
    "correlation 0.8, 3 %": autocorrelated(0.8),
    "Student's t, 3 degrees": _heavy,
    "5 % of steps far slower": _slow_steps,
    "two modes, 10 % apart": _two_modes,
    "each 20th step slow": _regular,
}
RISES = (0.05, 0.1, 0.2, -0.1)


def false_alarms(draw: Callable[[int, Random], Floats], steps: int) -> int:
    """Return the changes that are found in healthy runs of 20,000 steps."""
    found = 0
    for seed in range(max(1, steps // 20_000)):
        found += len(find_shifts(8e7 * np.exp(draw(20_000, np.random.default_rng([1, seed])))))
    return found


def power(draw: Callable[[int, Random], Floats], rise: float) -> tuple[int, float, int]:
    """Return how many of the changes are found, the median delay in steps, and other alarms."""
    delays, others = [], 0
    for seed in range(SEEDS):
        logs = draw(STEPS, np.random.default_rng([2, seed]))
        logs[AT + seed :] += np.log1p(rise)
        shifts = find_shifts(8e7 * np.exp(logs))
        near = [shift for shift in shifts if abs(shift.at - AT - seed) <= NEAR]
        others += len(shifts) - len(near[:1])
        delays += [shift.seen - AT - seed + 1 for shift in near[:1]]
    return len(delays), float(np.median(delays)) if delays else float("nan"), others


def on_shared_machine(folders: Sequence[Path]) -> str:
    """Count the changes in recorded runs; nobody knows which of them are real."""
    runs = steps = changes = 0
    for path in [run for folder in folders for run in find_runs(folder)]:
        try:
            trace = Trace.open(path)
            used = steady_steps(trace).steps
            changes += len(find_changes(trace, used))
        except (ProfkitError, OSError):
            continue
        runs, steps = runs + 1, steps + len(used)
    return (
        f"{runs} recorded runs of small jobs, most with steps of about 1 ms, on a machine with two "
        f"cores that other processes used at times: {changes} changes in {steps:,} steps. Nobody "
        "knows which of them are real.\n"
    )


def synthetic(steps: int) -> str:
    """Return the tables of false alarms and of power."""
    about = (
        f"Each row has {SEEDS} runs per size with a change after about {AT} of {STEPS} steps, and "
        "healthy runs of 20,000 steps. *Found*: within "
        f"{NEAR} steps of the planted place. *Delay*: the median number of steps until it is seen."
    )
    lines = [
        "## Synthetic step times",
        "",
        about,
        "",
        "| noise | healthy steps | false alarms | "
        + " | ".join(f"{rise:+.0%}: found, delay" for rise in RISES)
        + " | other alarms |",
        "|---|---|---|" + "---|" * (len(RISES) + 1),
    ]
    each, total, alarms = max(20_000, steps // len(NOISES) // 20_000 * 20_000), 0, 0
    for name, draw in NOISES.items():
        false = false_alarms(draw, each)
        total, alarms = total + each, alarms + false
        cells, others = [], 0
        for rise in RISES:
            found, delay, more = power(draw, rise)
            shown = "-" if np.isnan(delay) else f"{delay:.0f}"
            cells.append(f"{found} of {SEEDS}, {shown}")
            others += more
        lines.append(f"| {name} | {each:,} | {false} | {' | '.join(cells)} | {others} |")
    lines += ["", f"In all {alarms} false alarms in {total:,} healthy steps.", ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class Planted:
    """A job with a change; `kind` is that of the report, `part` the phase or cause it names."""

    change: str
    kind: str
    part: str
    options: tuple[str, ...] = ()


JOBS: Mapping[str, Planted] = {
    "healthy": Planted("none", "", ""),
    "healthy short steps": Planted("none", "", "", ("--sleep-ms", "3", "--steps", "800")),
    "forward": Planted("forward", "step", "forward"),
    "backward": Planted("backward", "step", "backward"),
    "input": Planted("input", "step", "data"),
    "optimizer": Planted("optimizer", "step", "optimizer"),
    "between steps": Planted("outside", "step", "unknown"),
    "quicker": Planted("quicker", "step", "forward"),
    "small": Planted("forward", "step", "forward", ("--extra-ms", "1.5")),
    "drift": Planted("drift", "drift", "forward"),
    "burst": Planted("burst", "burst", "forward"),
    "periodic": Planted("periodic", "periodic", "forward"),
}


def run(work: Path, names: Sequence[str]) -> None:
    """Record the missing jobs."""
    for name in names:
        folder, planted = work / name.replace(" ", "_").replace(",", ""), JOBS[name]
        if (folder / "done").exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        job = [sys.executable, str(JOB), "--change", planted.change, *planted.options]
        done = subprocess.run(
            [sys.executable, "-m", "profkit", "run", "--output", str(folder / "runs"), "--", *job],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        (folder / "stderr").write_text(done.stderr, encoding="utf-8")
        if done.returncode:
            raise SystemExit(f"{folder}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        (folder / "done").touch()
        print(name, flush=True)


def rows(work: Path) -> Iterator[tuple[bool, str]]:
    """Yield for each recorded job if all is right, and its row of the table."""
    for name, planted in JOBS.items():
        folder = work / name.replace(" ", "_").replace(",", "")
        if not (folder / "done").exists():
            continue
        trace = Trace.open(find_runs(folder / "runs")[0])
        changes = build_overview(trace).changes
        said = [line for line in (folder / "stderr").read_text().splitlines() if " step " in line]
        near = [each for each in changes if abs(each.first_step - AT) <= NEAR + (STEPS // 20)]
        right = bool(near) and near[0].kind.value == planted.kind
        named = bool(near) and planted.part in [part for part, _ in near[0].phases]
        if not planted.kind:
            right = named = not changes
        causes = "-"
        if right and planted.kind in {"step", "drift"}:
            found = explain(*cut_at(trace, near[0].first_step))
            causes = ", ".join(f"`{each.kind}`" for each in found.causes) or "none"
        shown = "; ".join(f"{each.kind.value} at {each.first_step}" for each in changes) or "none"
        parts = ", ".join(part for part, _ in near[0].phases) if near else "-"
        cells = (name, planted.kind or "none", shown, parts, causes, str(len(said)))
        yield right and named, f"| {' | '.join(cells)} |"


def score(work: Path) -> tuple[bool, str]:
    found = list(rows(work))
    right = sum(is_right for is_right, _ in found)
    about = (
        f"Small jobs on the CPU with a change at step {AT} (`midrun_job.py`), recorded with "
        f"`profkit run`: {right} of {len(found)} are right in kind, place and phase. *Live lines*: "
        "what `profkit run` printed to stderr while the job ran. Written "
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores."
    )
    lines = [
        "## Recorded jobs",
        "",
        about,
        "",
        "| job | planted | reported | phases | causes by --at | live lines |",
        "|---|---|---|---|---|---|",
        *(row for _, row in found),
        "",
    ]
    return right == len(found), "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("what", choices=("synthetic", "run", "score"))
    options.add_argument("--steps", type=int, default=2_000_000)
    options.add_argument("--work", type=Path)
    options.add_argument("--noise", type=Path, nargs="*", default=[], help="folders of runs")
    options.add_argument("--only", default="")
    options.add_argument("--write", action="store_true")
    args = options.parse_args()
    is_right = True
    if args.what == "synthetic":
        text = synthetic(args.steps)
        if args.noise:
            text += "\n" + on_shared_machine(args.noise)
    elif args.what == "run":
        run(args.work, args.only.split(",") if args.only else list(JOBS))
        return
    else:
        is_right, text = score(args.work)
    print(text)
    if args.write:
        page, marks = (
            DOCUMENT.read_text(encoding="utf-8"),
            (f"<!-- {args.what} -->", f"<!-- end of {args.what} -->"),
        )
        DOCUMENT.write_text(replace_section(page, text, *marks), encoding="utf-8")
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
