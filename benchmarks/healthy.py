"""Compare healthy twins on a quiet, a contended and a suddenly contended machine.

    python benchmarks/healthy.py run               run the missing rounds into --work
    python benchmarks/healthy.py score [--write]   compare them; write docs/results/healthy.json

A round is three runs of one job in random order: two healthy ones, and one with a wait of a tenth
of its step. The healthy ones must not be called a change, and the third should be found.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import results

from profkit.analysis.machine_state import MachineState, mean_state
from profkit.explain.evidence import Evidence
from profkit.explain.explained import explain_sides, read_side
from profkit.explain.slowness import state_of
from profkit.explain.verdict import Verdict
from profkit.trace import Trace
from profkit.trace.reader import find_runs

FAULTS = Path(__file__).with_name("faults")
JOBS: Mapping[str, Mapping[str, Any]] = {
    "one thread": {"steps": 160, "batch": 16, "width": 32},
    "two threads": {"steps": 160, "batch": 32, "width": 48, "threads": 2},
}
"""Options of `benchmarks/faults/job_metric.py`, which has a loader worker."""

QUIET, CONTENDED, SUDDEN = "without load of ours", "contended", "suddenly contended"
FIRST, SECOND, PLANTED = "first", "second", "planted"
PLANTED_SHARE = 0.10
BURNERS = 2
"""Processes that compute on a contended machine, which has two cores."""

MEAN_SWITCH_S = 8.0
"""On a suddenly contended machine, other work begins and ends after so long, on average."""

WARM_UP = 10
"""Steps of the job's own clock that do not count for the length of its step."""

CALIBRATED, DONE = "step.json", "done.json"
SIDES = (1, 3)
"""Runs per side."""

DRAWS = 60
"""Comparisons of several runs per side that are made at most for a job on a host."""

SURE = (Verdict.REGRESSION, Verdict.IMPROVEMENT)


class Score(NamedTuple):
    """Comparisons of one kind, and how many of them are called a change."""

    compared: int
    called: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-healthy"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.what == "run":
        run(args.work, args.rounds)
        return
    rows = [row(args.work, kind) for kind in (QUIET, CONTENDED, SUDDEN)]
    print(json.dumps(rows, indent=1))
    if args.write:
        results.write("healthy", rows)


# -- the runs --------------------------------------------------------------------------------------


def run(work: Path, rounds: int) -> None:
    """Run what is missing, all hosts in turn, so that what changes meanwhile meets all alike."""
    sys.path.insert(0, str(FAULTS))
    os.environ["FAULTS_AS_OTHERS"] = "1"  # jobs without priority, as those of users
    from pairs import Host

    host = Host("torch")
    for name, options in JOBS.items():
        _calibrate(host, work / name, options)
    for number in range(rounds):
        for kind in (QUIET, CONTENDED, SUDDEN):
            for name, options in JOBS.items():
                folder = work / name / kind / str(number)
                if not (folder / DONE).exists():
                    with contended(kind):
                        _run_round(host, folder, options, work / name / CALIBRATED)
                    print(
                        f"{kind}, {name}, round {number}: {time.strftime('%H:%M:%S')}", flush=True
                    )
    host.close()


def _calibrate(host: Any, folder: Path, options: Mapping[str, Any]) -> None:
    """Measure the length of the job's step on the machine as it is, by the job's own clock."""
    if (folder / CALIBRATED).exists():
        return
    place = folder / "calibration"
    _run_job(host, place, options)
    steps = json.loads((place / "own0.json").read_text())[WARM_UP:]
    length_ms = statistics.median(step["step"] for step in steps)
    (folder / CALIBRATED).write_text(json.dumps({"step_ms": length_ms}))


def _run_round(host: Any, folder: Path, options: Mapping[str, Any], calibrated: Path) -> None:
    step_ms = json.loads(calibrated.read_text())["step_ms"]
    late = {"late_rank": 0, "late_place": "forward", "late_ms": PLANTED_SHARE * step_ms}
    order: list[tuple[str, Mapping[str, Any]]] = [(FIRST, {}), (SECOND, {}), (PLANTED, late)]
    random.shuffle(order)
    for side, change in order:
        _run_job(host, folder / side, {**options, **change})
    (folder / DONE).write_text(json.dumps({"at": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}))


def _run_job(host: Any, place: Path, options: Mapping[str, Any]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    codes = host.run(
        {"job": "job_metric", "options": dict(options), "ranks": 1, "folder": str(place)}
    )
    if any(codes):
        raise SystemExit(f"{place}: the job ended with {codes}")


@contextlib.contextmanager
def contended(kind: str) -> Iterator[None]:
    """Compute next to the block, all the time or now and then."""
    burners = []
    for _ in range(0 if kind == QUIET else BURNERS):
        burner = multiprocessing.Process(target=_burn, args=(kind == SUDDEN,), daemon=True)
        burner.start()
        burners.append(burner)
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn(now_and_then: bool) -> None:
    chance = random.Random()
    while True:
        if now_and_then:
            time.sleep(chance.expovariate(1 / MEAN_SWITCH_S))
        until = time.monotonic() + chance.expovariate(1 / MEAN_SWITCH_S)
        while time.monotonic() < until:
            sum(range(10_000))


# -- the score -------------------------------------------------------------------------------------


def read(work: Path, name: str, kind: str) -> list[dict[str, Evidence]]:
    """Read the complete rounds of a job on a host."""
    rounds = []
    for done in sorted((work / name / kind).glob(f"*/{DONE}")):
        runs = {}
        for side in (FIRST, SECOND, PLANTED):
            trace = Trace.open(find_runs(done.parent / side)[-1])
            (runs[side],) = read_side([trace]).runs
        rounds.append(runs)
    return rounds


def compare(rounds: list[dict[str, Evidence]], other: str, runs: int) -> Score:
    """Compare healthy runs with others: single ones of any rounds, several ones round by round."""
    pairs: list[tuple[list[Evidence], list[Evidence]]] = []
    healthy = [each[side] for each in rounds for side in (FIRST, SECOND)]
    if runs == 1 and other == SECOND:
        pairs = [([base], [target]) for base, target in itertools.combinations(healthy, 2)]
    elif runs == 1:
        planted = [each[other] for each in rounds]
        pairs = [([base], [target]) for base, target in itertools.product(healthy, planted)]
    else:
        for chosen in itertools.combinations(rounds, runs):
            for sides in itertools.product((FIRST, SECOND), repeat=runs):
                pairs.append(_sides(chosen, sides, other))
        if other == SECOND:
            pairs = pairs[::2]  # each other pair is one of these with its sides exchanged
        pairs = random.Random(runs).sample(pairs, min(DRAWS, len(pairs)))
    called = 0
    for bases, targets in pairs:
        verdict = explain_sides(bases, targets).ledger.verdict
        called += verdict in SURE if other == SECOND else verdict is Verdict.REGRESSION
    return Score(len(pairs), called)


def _sides(
    rounds: Sequence[Mapping[str, Evidence]], sides: Sequence[str], other: str
) -> tuple[list[Evidence], list[Evidence]]:
    """Return the runs of a comparison: from each round one healthy run, and the other."""
    bases, targets = [], []
    for each, side in zip(rounds, sides, strict=True):
        bases.append(each[side])
        twin = SECOND if side == FIRST else FIRST
        targets.append(each[twin if other == SECOND else other])
    return bases, targets


def row(work: Path, kind: str) -> dict[str, Any]:
    """Return the load and the spread on a host, and the scores over all jobs.

    The spread is the standard deviation of healthy runs, of the noisier job.
    """
    states: list[MachineState] = []
    spreads: list[float] = []
    scores: dict[str, list[Score]] = {}
    for name in JOBS:
        rounds = read(work, name, kind)
        paces = []
        for each in rounds:
            states += [state for run in each.values() if (state := state_of(run))]
            paces += [each[FIRST].step_ns, each[SECOND].step_ns]
        if not rounds:
            continue
        spreads.append(statistics.stdev(paces) / statistics.mean(paces))
        for other, words in ((SECOND, "healthy, called a change"), (PLANTED, "planted, found")):
            for runs in SIDES:
                found = scores.setdefault(f"{words}, {runs} per side", [])
                found.append(compare(rounds, other, runs))
    cells: dict[str, Any] = {"machine": kind}
    if spreads:
        cells |= {"cores_used_by_others": mean_state(states).others, "spread": max(spreads)}
    for words, each_job in scores.items():
        cells[words] = Score(*map(sum, zip(*each_job, strict=True)))._asdict()
    return cells


if __name__ == "__main__":
    main()
