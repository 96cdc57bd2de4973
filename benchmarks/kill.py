"""Kill a job that records rows at random moments, and count the lost rows.

    python benchmarks/kill.py [--trials 50] [--rows 340000] [--seconds 4] [--seed 0]

A row is lost if it was handed over more than a second before the kill and cannot be read. If the
whole job paused without a CPU, only the beginning of the pause counts for that second. Prints a
line per trial; exits 1 if a row was lost or differs from the written one, or if `verify` named a
wrong state.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from profkit.clock import now_ns, read_anchor
from profkit.errors import UnreadableError
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, verify
from profkit.trace.integrity import this_process
from profkit.vocab import PHASES, Integrity, RunState

PROMISE_NS = 1_000_000_000
"""Rows older than this survive a kill."""

STALL_NS = 20_000_000
"""The part of a pause that counts. Bursts are 2 ms apart if nothing keeps the job from running."""

START_S, END_S = 0.4, 0.4
"""About what the child takes before its first row and after its last one; kills fall there too."""

RECORD = struct.Struct("<qq")
NO_RUN = "no run yet"


@dataclass(frozen=True)
class Trial:
    """The result of one kill. `due` rows were a second old, `given` rows were handed over."""

    killed_after_s: float
    rows: int
    given: int
    due: int
    readable: int
    exact: bool
    state: str
    exit_code: int

    @property
    def lost(self) -> int:
        return max(0, self.due - self.readable)

    @property
    def honest(self) -> bool:
        """Return true if the state fits: a killed job does not run, and is not complete."""
        if self.state == NO_RUN:
            return self.due == 0
        if self.state == Integrity.COMPLETE.value:
            return self.readable == self.rows
        return (
            self.state in {Integrity.ENDED_EARLY.value, Integrity.TORN.value}
            and self.exit_code != 0
        )

    @property
    def kept_the_promise(self) -> bool:
        return self.exact and self.honest and not self.lost


def run_trial(folder: Path, *, kill_after_s: float, rows: int, seconds: float) -> Trial:
    """Start a child that records `rows` over `seconds`, kill it, and read its `folder`."""
    log, child_log = os.pipe()
    command = [
        sys.executable,
        __file__,
        "--record",
        str(folder),
        "--log",
        str(child_log),
        "--rows",
        str(rows),
        "--seconds",
        str(seconds),
    ]
    with subprocess.Popen(command, pass_fds=[child_log]) as child:
        os.close(child_log)
        time.sleep(min(kill_after_s, START_S))
        if kill_after_s > START_S:
            select.select(
                [log], [], []
            )  # its first rows: on a busy machine a child takes longer to get there
            time.sleep(kill_after_s - START_S)
        killed_ns = now_ns()
        child.kill()
        exit_code = child.wait()
    given, due = _read_log(log, killed_ns)
    readable, exact, state = _read_run(folder)
    return Trial(
        kill_after_s, rows, given, due, readable, exact and readable <= rows, state, exit_code
    )


def _read_log(log: int, killed_ns: int) -> tuple[int, int]:
    """Return how many rows were handed over at the end, and a second before the kill."""
    with open(log, "rb") as pipe:
        content = pipe.read()
    records = list(RECORD.iter_unpack(content[: len(content) // RECORD.size * RECORD.size]))
    return max((rows for rows, _ in records), default=0), _due(records, killed_ns)


def _due(records: Sequence[tuple[int, ...]], killed_ns: int) -> int:
    """Return the rows of the last record that is a second old, without the job's pauses."""
    age, after = 0, killed_ns
    for rows, at in reversed(records):
        age, after = age + min(after - at, STALL_NS), at
        if age >= PROMISE_NS:
            return rows
    return 0


def _read_run(folder: Path) -> tuple[int, bool, str]:
    try:
        spans, found = Trace.open(folder).spans, verify(folder)
    except UnreadableError:
        return 0, True, NO_RUN
    return spans.num_rows, _is_prefix(spans), found.state.value


def _is_prefix(spans: pa.Table) -> bool:
    """Return true if the rows are the first ones that `record` writes, in order."""
    index = np.arange(spans.num_rows)
    numbers = {"step": index, "start_ns": index * 1000, "end_ns": index * 1000 + 500}
    texts = {
        "name": [f"layer {number}" for number in index // 1000],
        "phase": [PHASES[number] for number in index % len(PHASES)],
    }
    return (
        all(
            np.array_equal(spans[column].to_numpy(), expected)
            for column, expected in numbers.items()
        )
        and all(
            spans[column].cast(pa.string()).to_pylist() == expected
            for column, expected in texts.items()
        )
        and spans["bytes"].to_pylist()
        == [number if number % 2 else None for number in index.tolist()]
    )


def record(run: Path, *, log: int, rows: int, seconds: float) -> None:
    """Hand rows over at an even pace, and log how many there were at each time."""
    run.mkdir(parents=True)
    manifest = RunManifest(workload="kill", owner=this_process())
    manifest.write(run)
    writer = RankWriter(run, RankManifest(0, platform.node(), os.getpid(), "cpu", read_anchor()))
    append = writer.appender("spans")
    burst = max(100, rows // 2000)  # so that the log fits into a pipe that nobody reads yet
    begin = time.perf_counter()
    for first in range(0, rows, burst):
        last = min(first + burst, rows)
        for index in range(first, last):
            append(_row(index))
        os.write(log, RECORD.pack(last, now_ns()))
        time.sleep(max(0.0, begin + seconds * last / rows - time.perf_counter()))
    writer.close()
    RunManifest(workload="kill", state=RunState.COMPLETE).write(run)


def _row(index: int) -> tuple[object, ...]:
    moved = index if index % 2 else None
    return (
        index,
        PHASES[index % len(PHASES)],
        f"layer {index // 1000}",
        0,
        "MainThread",
        index * 1000,
        index * 1000 + 500,
        None,
        None,
        moved,
        None,
    )


def moments(trials: int, life_s: float, seed: int) -> Iterator[float]:
    """Return random moments, one in each of `trials` equal parts of a life."""
    chance = random.Random(seed)
    yield from ((part + chance.random()) * life_s / trials for part in range(trials))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--rows", type=int, default=340_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record, log=arguments.log, rows=arguments.rows, seconds=arguments.seconds)
        return 0
    return _run_trials(arguments.trials, arguments.rows, arguments.seconds, arguments.seed)


def _run_trials(count: int, rows: int, seconds: float, seed: int) -> int:
    done = []
    for kill_after_s in moments(count, START_S + seconds + END_S, seed):
        with tempfile.TemporaryDirectory() as folder:
            done.append(
                run_trial(
                    Path(folder) / "run", kill_after_s=kill_after_s, rows=rows, seconds=seconds
                )
            )
        print(_describe(done[-1]), flush=True)
    states = ", ".join(
        f"{state} {number}" for state, number in Counter(trial.state for trial in done).items()
    )
    broken = sum(not trial.kept_the_promise for trial in done)
    print(
        f"{count} trials: {sum(trial.lost for trial in done)} rows older than a second lost; "
        f"{states}; {broken} promises broken"
    )
    return 1 if broken else 0


def _describe(trial: Trial) -> str:
    verdict = (
        ""
        if trial.kept_the_promise
        else f"  BROKEN (exact {trial.exact}, honest {trial.honest}, exit {trial.exit_code})"
    )
    return (
        f"killed after {trial.killed_after_s:5.2f} s: {trial.given:7,} given, {trial.due:7,} "
        f"due, {trial.readable:7,} readable, {trial.lost} lost, {trial.state}{verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
