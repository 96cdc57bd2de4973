"""Let the n-th write of a recorded loop fail, for all n, and compare with the bare loop.

    python benchmarks/io_errors.py [--most 200]

Each trial is a process of its own in which `os.write` raises ENOSPC, EDQUOT or EIO at the n-th
call, or from then on. Exits 1 if the loop ended differently, computed another bit, or left a run
that does not say why it ended early.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profkit.clock import read_anchor
from profkit.instrument.loop_recorder import NullRecorder
from profkit.instrument.recorder import Recorder
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, verify
from profkit.trace.integrity import this_process
from profkit.vocab import Integrity, RunState

STEPS, BURST, PAUSE_S = 600, 3, 0.0004
"""After a few steps the writer's thread has its turn, so that there are some hundred writes."""

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class FailingWrite:
    """A replacement of `os.write` that raises at the n-th call, once or from then on."""

    def __init__(self, nth: int, code: int, *, for_good: bool) -> None:
        self._real, self._nth, self._code, self._for_good = os.write, nth, code, for_good
        self.calls = 0

    def __call__(self, file: int, data: Any) -> int:
        self.calls += 1
        if self.calls == self._nth or (self._for_good and self.calls > self._nth):
            raise OSError(self._code, os.strerror(self._code))
        return self._real(file, data)


def train(recorder: Any) -> Iterator[float]:
    """Run a loop whose losses depend on every bit of all earlier steps."""
    chance, weight = random.Random(0), 0.5
    recorder.begin()
    for _ in range(STEPS):
        with recorder.step(1):
            with recorder.phase("data"):
                sample = chance.random()
            with recorder.phase("forward"):
                error = weight * sample - 0.3
            with recorder.phase("optimizer"):
                weight -= 0.1 * error * sample
        yield error * error


def run_trial(folder: Path, nth: int, code: int, alone: list[float], *, for_good: bool) -> str:
    """Run one trial in a fork and return how it ended.

    `whole` means that fewer writes were made, `early` that the run ended early. Everything else
    is an error.
    """
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(told)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            # The file is buffered and closed explicitly: the fork ends without cleanup.
            report = open(tell, "w", encoding="utf-8")  # noqa: SIM115
            report.write(_record(folder, nth, code, alone, for_good=for_good))
            report.close()
        finally:
            os._exit(0)
    os.close(tell)
    with open(told, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said or "BROKEN: the loop did not end"


def _record(folder: Path, nth: int, code: int, alone: list[float], *, for_good: bool) -> str:
    RunManifest(workload="io", owner=this_process()).write(folder)
    failing = FailingWrite(nth, code, for_good=for_good)
    os.write = failing
    writer = RankWriter(
        folder, RankManifest(0, "here", os.getpid(), "cpu", read_anchor()), interval_s=0.0005
    )
    recorder = Recorder(writer)
    losses = []
    for number, loss in enumerate(train(recorder)):
        losses.append(loss)
        if number % BURST == 0:
            time.sleep(PAUSE_S)
    recorder.stop()
    writer.close(timeout_s=20)
    os.write = failing._real  # noqa: SLF001  # ours
    RunManifest(workload="io", state=RunState.COMPLETE).write(folder)
    if losses != alone:
        return "BROKEN: other losses"
    state = verify(folder).state
    if failing.calls < nth:
        return (
            "whole"
            if state is Integrity.COMPLETE and Trace.open(folder).steps.num_rows == STEPS
            else f"BROKEN: {state.value} without a failure"
        )
    fitting = state is Integrity.ENDED_EARLY and os.strerror(code) in writer.failure
    return "early" if fitting else f"BROKEN: {state.value}, {writer.failure or 'no reason'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most", type=int, default=200)
    arguments = parser.parse_args()
    alone = list(train(NullRecorder()))
    found: Counter[str] = Counter()
    for nth, code, for_good in itertools.product(
        range(1, arguments.most + 1), CODES, (False, True)
    ):
        with tempfile.TemporaryDirectory() as folder:
            found[run_trial(Path(folder), nth, code, alone, for_good=for_good)] += 1
    broken = sum(count for outcome, count in found.items() if outcome.startswith("BROKEN"))
    named = ", ".join(f"{outcome} {count:,}" for outcome, count in found.most_common())
    print(
        f"n = 1 to {arguments.most}, {len(CODES)} errors, once and for good: {named}; losses "
        f"equal to the bit; {broken} broken"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
