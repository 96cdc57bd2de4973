"""Flip bytes of profkit's own runs and cut them, and check that no wrong figure is shown.

    python benchmarks/mutate_runs.py [--count 50000] [--seed 0] [--without-validation]

Each mutation changes one file of a run: a table, a list of names, or a record. The run is then
verified and reported in a process of its own. Allowed are the same figures, figures with a
message about the damage, or one line with the reason for refusal. Not allowed are another figure
without a message, a crash, a traceback, a hang over 5 s, and growing memory. A changed digit in a
record is ignored, because JSON has no checksum.

`--without-validation` skips validation and checksums, to show that this check can fail. Exits 1
at any failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from mutate_traces import LONGEST_S, MOST_GROWTH_MB, Found, HungError

from profkit.analysis.overview import build_overview
from profkit.errors import UnreadableError
from profkit.report.overview_document import overview
from profkit.show.json import document, dumps
from profkit.testing import synthetic_trace
from profkit.trace import Trace, verify
from profkit.trace import stream as streams
from profkit.trace.reader import RankTrace
from profkit.vocab import Integrity

A_PROCESS = 500
"""Mutations that one process reads: a crash costs those after it, and is counted."""


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return `content` with bits or bytes changed, or cut."""
    made = bytearray(content)
    if chance.random() < 0.1:
        del made[chance.randrange(len(made)) :]
    for _ in range(chance.choice((1, 1, 1, 2, 8)) if made else 0):
        place = chance.randrange(len(made))
        made[place] = (
            chance.randrange(256)
            if chance.random() < 0.5
            else made[place] ^ (1 << chance.randrange(8))
        )
    return bytes(made)


def run(count: int, seed: int, *, validating: bool = True) -> Found:
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        whole = synthetic_trace(
            Path(folder) / "run", ranks=2, steps=24, kernels_per_step=4, steps_per_epoch=0
        )
        for first in range(0, count, A_PROCESS):
            _read_in_a_process(
                whole,
                found,
                f"{seed}.{first}",
                min(A_PROCESS, count - first),
                validating=validating,
            )
    return found


def _read_in_a_process(
    whole: Path, found: Found, seed: str, count: int, *, validating: bool
) -> None:
    """Read mutations in a fork. The mutation that it does not report is the one it crashed at."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(told)
            faulthandler.disable()  # where validation is off a crash is what is expected
            _tell_outcomes(whole, tell, seed, count, validating=validating)
        finally:
            os._exit(0)
    os.close(tell)
    told_of = 0
    with open(told, encoding="utf-8") as pipe:
        for line in pipe:
            _count(found, json.loads(line))
            told_of += 1
    _, status = os.waitpid(child, 0)
    if status:
        found.failures.append(f"seed {seed}: the reader was ended by signal {os.WTERMSIG(status)}")
    elif told_of < count:
        found.failures.append(f"seed {seed}: the reader gave up after {told_of} of {count}")


def _count(found: Found, told: dict[str, Any]) -> None:
    found.outcomes[told["outcome"]] += 1
    found.slowest_s = max(found.slowest_s, told["seconds"])
    found.growth_mb = max(found.growth_mb, told["growth_mb"])
    if told["failure"]:
        found.failures.append(told["failure"])


def _tell_outcomes(whole: Path, tell: int, seed: str, count: int, *, validating: bool) -> None:
    signal.signal(signal.SIGALRM, _hang)
    if not validating:
        _switch_validation_off()
    before = _peak_mb()
    truth = _figures(whole)
    files = sorted(path for path in whole.rglob("*") if path.is_file())
    chance = random.Random(seed)
    for number in range(count):
        path = chance.choice(files)
        content = path.read_bytes()
        mutated = mutate(content, chance)
        path.write_bytes(mutated if mutated != content else content[:-1])
        begun = time.perf_counter()
        outcome, failure = _judge(
            whole, path, truth, f"seed {seed}, mutation {number}, {path.relative_to(whole)}"
        )
        told = {
            "outcome": outcome,
            "failure": failure,
            "seconds": time.perf_counter() - begun,
            "growth_mb": _peak_mb() - before,
        }
        os.write(tell, (json.dumps(told) + "\n").encode())
        path.write_bytes(content)


def _judge(run: Path, path: Path, truth: dict[str, Any], place: str) -> tuple[str, str]:
    """Return how one mutation ended, and what was wrong."""
    signal.alarm(LONGEST_S)
    try:
        state = verify(run).state
        figures = _figures(run)
    except UnreadableError as error:
        return "refused", f"{place}: an error of several lines" if "\n" in str(error) else ""
    except (Exception, HungError) as error:  # noqa: BLE001  # any other error is a failure
        return "failed", f"{place}: {type(error).__name__}: {error}"[:300]
    finally:
        signal.alarm(0)
    same = _without_words(figures) == _without_words(truth)
    warned = (
        figures["data_quality"] != truth["data_quality"] or figures["verdict"] != truth["verdict"]
    )
    if path.suffix != ".arrows":
        otherwise = "reported" if warned else "a record says something else"
        return ("same" if same else otherwise), ""
    if state is Integrity.COMPLETE:
        return "wrong", f"{place}: verify calls it complete"
    if not same and not warned:
        return "wrong", f"{place}: other figures without a word"
    return "same" if same else "reported", ""


def _figures(run: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(dumps(document(overview(build_overview(Trace.open(run))))))
    return figures


def _without_words(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in figures.items() if name not in {"data_quality", "verdict"}
    }


def _switch_validation_off() -> None:
    """Read every batch without checking it."""

    def unchecked(source: Any, table: str, columns: Any = None) -> Iterator[Any]:
        with pa.ipc.open_stream(source) as reader:
            yield from reader

    streams._valid_batches = unchecked  # noqa: SLF001  # this guard is removed on purpose

    def as_read(self: RankTrace, table: str, found: Any, path: Any) -> Any:
        return found

    RankTrace._check_against_end = as_read  # type: ignore[method-assign]  # noqa: SLF001


def _hang(number: int, frame: FrameType | None) -> None:
    raise HungError(f"longer than {LONGEST_S} s")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-validation", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments.count, arguments.seed, validating=not arguments.without_validation)
    if found.growth_mb > MOST_GROWTH_MB:
        found.failures.append(f"memory grew by {found.growth_mb:.0f} MB")
    for failure in found.failures[:20]:
        print(failure)
    named = ", ".join(f"{outcome} {number:,}" for outcome, number in found.outcomes.most_common())
    print(
        f"{arguments.count:,} mutations: {named}; {len(found.failures)} failures; slowest "
        f"{found.slowest_s:.2f} s, memory grew by {found.growth_mb:.0f} MB"
    )
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
