"""Measure what recording costs a step, next to record_function and torch.profiler.

Modes alternate in short blocks of steps, on one model and in a new random order each turn, so
that disturbances affect all of them. The result of each mode is the mean difference to the bare
block of its turn with its 95 % interval, in wall time and in the training thread's CPU time.
Memory addresses differ between processes and move large steps by about 0.1 ms. With several
processes, the interval is the wider of those over all turns and over the processes' means. Most
of that effect are page faults of a heap that glibc trims after each large tensor. With `--keep-
heap` it keeps its memory in every mode.

profkit's writer writes twice per second, too rarely for short blocks. It waits until a block has
ended, and one long run measures its cost (beside.py). `profkit` is the sum of both.

With `--outside`, the processes next to the job run too, as under `profkit run`, but for the bare
blocks, in which they are stopped. Nothing waits for the end of a block then, so blocks are long.

    python benchmarks/overhead.py [--processes 1 [--keep-heap]] [--turns 60] [--block-ms 150]
                                  [--threads 1] [--outside]

Exits 1 if profkit costs more than 0.15 ms per step, or more than 1 % of the step of about 20 ms,
for the mean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import results
import torch
from beside import Added, Events, Turn, added, noting
from block_costs import WRITER, Found, Took, compare
from overhead_jobs import Case, make_cases, train

from profkit.run.choosing import COLLECT, NOTHING
from profkit.run.job import Job
from profkit.run.outside import outside

LIMIT_MS = 0.15
LIMIT_SHARE = 0.01
LONG_STEP_MS = 15.0
KEPT_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_MAX_": "0"}
SETTLE_S = 0.3
"""The rows of a block are written by then."""

BESIDE_S = 30.0
"""Usual length of the run of steps that measures the cost of threads next to it."""
BLOCK_MS, FEWEST_STEPS = 3_000, 100
"""Length of its blocks: longer than the time between two flushes, and at least so many steps."""
FEWEST_TURNS = 2


def _nothing(name: str) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


class Modes:
    """The four ways to run a block of steps.

    profkit's hooks and writer are the real ones, with files, but without collectors.
    """

    def __init__(self, folder: Path) -> None:
        os.environ[COLLECT] = NOTHING  # the job's own would run beside every mode
        folder.mkdir(exist_ok=True)  # as `profkit run` does, or there would be no lookout
        self._job = Job(folder)
        # Every step is recorded here, without control steps.
        self._job.recorder._is_measured = lambda step: True  # noqa: SLF001
        self.names: dict[
            str,
            Callable[
                [],
                contextlib.AbstractContextManager[
                    Callable[[str], contextlib.AbstractContextManager[object]]
                ],
            ],
        ] = {
            "bare": self._bare,
            "profkit": self._profkit,
            "record_function": self._record_function,
            "torch.profiler": self._profiler,
        }

    @contextlib.contextmanager
    def _bare(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        yield _nothing

    @contextlib.contextmanager
    def _profkit(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        with self._hooked() as tell, self._writer_held():
            yield tell

    @contextlib.contextmanager
    def _writer_held(self) -> Iterator[None]:
        writer: Any = self._job.sink._writer  # noqa: SLF001
        if writer is None:  # in the first block, which warms up
            yield
            return
        flush, held = writer._flush, threading.Lock()  # noqa: SLF001

        def flush_later() -> None:
            with held:
                flush()

        with held:
            writer._flush = flush_later  # noqa: SLF001
            yield
        del writer._flush  # noqa: SLF001

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        self._job.hook("torch")
        yield _nothing
        self._job.unhook()
        self._job._frameworks.clear()  # noqa: SLF001  # so that the next block hooks again
        while any(
            self._job.sink.rows.values()
        ):  # else the writer would write them beside another mode
            time.sleep(0.01)

    @contextlib.contextmanager
    def _record_function(
        self,
    ) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        yield torch.profiler.record_function

    @contextlib.contextmanager
    def _profiler(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            yield torch.profiler.record_function

    @contextlib.contextmanager
    def watched(self) -> Iterator[dict[str, Events]]:
        """Yield profkit's hooks, and the times at which its threads work."""
        with self._hooked():
            writer: Any = self._job.sink._writer  # noqa: SLF001
            events: Events = []
            writer._flush = noting(events, writer._flush)  # noqa: SLF001
            yield {WRITER: events}
            del writer._flush  # noqa: SLF001

    def finish(self) -> None:
        self._job.finish()


class OutsideModes(Modes):
    """Two ways: bare, and with profkit in the job and outside of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._others = [
            int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if _is_ours(pid)
        ]
        self.names = {"bare": self._bare, "profkit": self._profkit}
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for pid in self._others:
            os.kill(pid, number)

    @contextlib.contextmanager
    def _profkit(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        self._signal(signal.SIGCONT)
        with self._hooked() as tell:
            yield tell
        time.sleep(SETTLE_S)
        self._signal(signal.SIGSTOP)

    def finish(self) -> None:
        self._signal(signal.SIGCONT)
        super().finish()


def _is_ours(pid: str) -> bool:
    """Return true for a process that this one has started."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[1]) == os.getpid()
    return False


def run_case(case: Case, modes: Modes, turns: int, block_ms: float) -> dict[str, list[Took]]:
    """Return the times of each mode in each turn. The first turn warms up."""
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    random = Random(0)
    times: dict[str, list[Took]] = {name: [] for name in modes.names}
    steps = max(3, round(block_ms / train(case, optimizer, 10, _nothing).wall_ms))
    for turn in range(turns + 1):
        for name in random.sample(list(modes.names), len(modes.names)):
            with modes.names[name]() as tell:
                took = train(case, optimizer, steps, tell)
            if turn:
                times[name].append(took)
    return times


def run_beside(case: Case, modes: Modes, seconds: float = BESIDE_S) -> dict[str, Added]:
    """Return how much each of profkit's threads adds to a step.

    After each block of steps next to the threads comes one without them.
    """
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    steps = max(FEWEST_STEPS, round(BLOCK_MS / train(case, optimizer, 10, _nothing).wall_ms))
    turns: dict[str, list[Turn]] = {}
    until = time.perf_counter_ns() + int(seconds * 1e9)
    while time.perf_counter_ns() < until:
        ends: tuple[list[int], list[int]] = [], []
        with modes.watched() as events:
            train(case, optimizer, steps, _nothing, ends[0])
        train(case, optimizer, steps, _nothing, ends[1])
        for name, found in events.items():
            turns.setdefault(name, []).append(Turn(*ends, found))
    return {name: added(found) for name, found in turns.items()}


def main() -> int:
    parser = make_parser(__doc__, turns=60, block_ms=150.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--outside", action="store_true", help="with the processes next to a job")
    args = parser.parse_args()
    runs = measure_in_processes(args, lambda: _measure(args))
    found = {case: compare(*(run[case] for run in runs)) for case in runs[0]}
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{os.cpu_count()} cores"
    told = {
        "device": machine,
        "processes": args.processes,
        "keep_heap": args.keep_heap,
        "turns": args.turns,
        "block_ms": args.block_ms,
        "threads": args.threads,
        "cases": found,
    }
    print(json.dumps(told, indent=2))
    if args.write:
        results.write("overhead_outside" if args.outside else "overhead", told)
    over = (
        costs_too_much(rows["profkit"]["over_bare_ms"], rows["bare"]["median_ms"])
        for rows in found.values()
    )
    return int(any(over))


def make_parser(what: str | None, *, turns: int, block_ms: float) -> argparse.ArgumentParser:
    """Return the options of a benchmark whose modes alternate."""
    parser = argparse.ArgumentParser(
        description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=_turns, default=turns)
    parser.add_argument("--block-ms", type=float, default=block_ms)
    parser.add_argument("--case", default="", help="only those with this in their name")
    parser.add_argument("--processes", type=int, default=1, help="one after the other")
    parser.add_argument(
        "--keep-heap",
        action="store_true",
        help="of several processes: no memory goes back to the system",
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--beside-s", type=float, default=BESIDE_S)
    parser.add_argument("--write", action="store_true", help="write docs/results")
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    return parser


def _turns(word: str) -> int:
    if (turns := int(word)) < FEWEST_TURNS:
        raise argparse.ArgumentTypeError(f"{turns} tell no interval; give {FEWEST_TURNS} or more")
    return turns


def measure_in_processes(
    args: argparse.Namespace, measure: Callable[[], dict[str, Found]]
) -> list[dict[str, Found]]:
    """Return the result of every case in each process.

    A process that was started for its times prints them and ends here.
    """
    if args.times:
        print(json.dumps({case: asdict(found) for case, found in measure().items()}))
        sys.exit(0)
    if args.processes > 1:
        return [
            _measure_in_process(KEPT_HEAP if args.keep_heap else {}) for _ in range(args.processes)
        ]
    if args.keep_heap:
        sys.exit(
            "--keep-heap is for several processes: a heap is set up as its process starts; add "
            "--processes 4"
        )
    return [measure()]


def _measure(args: argparse.Namespace) -> dict[str, Found]:
    """Return the result of every case in this process."""
    torch.set_num_threads(args.threads)
    os.environ["KINETO_LOG_LEVEL"] = "5"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = Path(folder) / "run"
        run.mkdir()
        if args.outside:
            stack.enter_context(outside(run, os.environ, in_job=True))
        modes = OutsideModes(run) if args.outside else Modes(run)
        cases = [case for case in make_cases(args.device) if args.case in case.name]
        found = {
            case.name: Found(
                run_case(case, modes, args.turns, args.block_ms),
                {} if args.outside else run_beside(case, modes, args.beside_s),
            )
            for case in cases
        }
        modes.finish()
    return found


def _measure_in_process(heap: dict[str, str]) -> dict[str, Found]:
    """Return the result of every case in a new process."""
    done = subprocess.run(
        [sys.executable, *sys.argv, "--times"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **heap},
    )
    return {case: Found.from_json(told) for case, told in json.loads(done.stdout).items()}


def costs_too_much(cost_ms: float, step_ms: float) -> bool:
    """Return true if a case is over the limit per step, or over the share for long steps."""
    return cost_ms > (min(LIMIT_MS, LIMIT_SHARE * step_ms) if step_ms >= LONG_STEP_MS else LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
