"""Cut a table's file at every byte and check that only written rows are read.

    python benchmarks/truncate.py [--size 65536] [--table spans|steps]
                                  [--end-record present|absent|both]

Prints the positions, the states that `verify` named, and the time. Exits 1 if a state is wrong,
and stops with a traceback at the first row that was not written.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from profkit.clock import Anchor
from profkit.trace import RankManifest, RunManifest, Trace, verify
from profkit.trace.files import RankFiles
from profkit.vocab import END_FILE, PHASES, Integrity, RunState, rank_folder

ROWS_A_BATCH = (200, 50, 100, 50, 20)
"""Larger batches are compressed, smaller ones are not; a killed job leaves both."""


def build_run(run: Path, table: str, size: int, *, ended: bool = True) -> Path:
    """Make a run with one table of at least `size` bytes; return the table's file."""
    files = RankFiles(run / rank_folder(0), 0)
    path = files.folder / f"{table}.arrows"
    RankManifest(0, "nowhere", 1, "cpu", Anchor(1, 2, 3)).write(files.folder)
    random = np.random.default_rng(0)
    for count in itertools.cycle(ROWS_A_BATCH):
        files.write(table, _BATCHES[table](random, count))
        if path.stat().st_size >= size:
            break
    files.close()
    RunManifest(workload="truncate", state=RunState.COMPLETE).write(run)
    if not ended:
        (files.folder / END_FILE).unlink()
    return path


def _steps(random: np.random.Generator, count: int) -> dict[str, Any]:
    """Return rows that compress badly, with some nulls."""
    times = random.integers(0, 2**62, (2, count))
    losses = [None if number % 3 else float(number) for number in random.integers(0, 2**40, count)]
    return {
        "step": range(count),
        "start_ns": times[0],
        "end_ns": times[1],
        "sample_count": [32] * count,
        "loss": losses,
        "instrumented": [True] * count,
    }


def _spans(random: np.random.Generator, count: int) -> dict[str, Any]:
    """Return rows like `_steps`, with names."""
    times = random.integers(0, 2**62, (2, count))
    return {
        "step": range(count),
        "phase": [PHASES[number % len(PHASES)] for number in range(count)],
        "name": [f"layer {number}" for number in random.integers(0, 30, count)],
        "depth": [0] * count,
        "thread": ["MainThread"] * count,
        "start_ns": times[0],
        "end_ns": times[1],
        "bytes": [
            None if number % 3 else int(number) for number in random.integers(0, 2**40, count)
        ],
    }


_BATCHES = {"steps": _steps, "spans": _spans}


def cut_everywhere(run: Path, path: Path) -> Counter[Integrity]:
    """Cut `path` at every byte from its end, read the run each time, and count the states."""
    table = path.stem
    whole = Trace.open(run).table(table)
    states: Counter[Integrity] = Counter()
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        found = Trace.open(run).table(table)
        assert found.equals(whole[: found.num_rows]), (
            f"cut to {size} bytes: rows that were never written"
        )
        states[verify(run).state] += 1
    return states


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--size", type=int, default=65_536, help="bytes of the file (default: %(default)s)"
    )
    parser.add_argument(
        "--table",
        choices=sorted(_BATCHES),
        default="spans",
        help="which table to cut (default: %(default)s)",
    )
    parser.add_argument(
        "--end-record",
        choices=("present", "absent", "both"),
        default="both",
        help="a run that ended, one that was killed (default: %(default)s)",
    )
    arguments = parser.parse_args()
    cuts = wrong = 0
    for ended in {"present": (True,), "absent": (False,), "both": (True, False)}[
        arguments.end_record
    ]:
        with tempfile.TemporaryDirectory() as folder:
            positions, misjudged = _report(
                Path(folder), arguments.table, arguments.size, ended=ended
            )
            cuts, wrong = cuts + positions, wrong + misjudged
    print(f"{cuts:,} cuts: no row that was not written, {wrong:,} states that are not so")
    return 1 if wrong else 0


def _report(run: Path, table: str, size: int, *, ended: bool) -> tuple[int, int]:
    """Cut one file everywhere and print the result; return the numbers of cuts and of errors."""
    path = build_run(run, table, size, ended=ended)
    positions = path.stat().st_size
    begin = time.perf_counter()
    states = cut_everywhere(run, path)
    seconds = time.perf_counter() - begin
    named = ", ".join(f"{state.value} {count:,}" for state, count in states.items())
    print(
        f"{table}, {positions:,} positions, {'with' if ended else 'without'} an end record: "
        f"{named}; {seconds:.1f} s"
    )
    fitting = {Integrity.TORN} if ended else {Integrity.TORN, Integrity.ENDED_EARLY}
    return positions, sum(count for state, count in states.items() if state not in fitting)


if __name__ == "__main__":
    sys.exit(main())
