"""The threads that the eye samples, and the files that it writes of each."""

from __future__ import annotations

import contextlib
import json
import os
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from profkit.clock import now_ns
from profkit.collectors._frame_table import NOTHING, FrameTable
from profkit.collectors._origins import Origins
from profkit.eye.layout import UnknownPythonError
from profkit.eye.memory import ForbiddenError
from profkit.eye.reader import Stack, StackReader
from profkit.hangs.processes import ENDED_STATES, GONE, look_at, name_call
from profkit.vocab import EYE, EYE_CPU, LINES_SUFFIX, WORKER_STACKS, rank_folder

INTERVAL_S = 0.05
"""Mean time between two samples of a training thread, and of all workers of a rank."""

DENSE_SAMPLES = 72_000
"""An hour of samples. Later ones are taken ever more rarely, so that their sum grows slowly.

A sample stands for the time in `every_ns`, so that rare ones count for more.
"""

MOST_TORN = 40
"""After so many readings that were dropped in a row, the process is looked at anew."""

WITNESSED = "_watch"
"""The function in which the witness of a process stays, in a file of the lookout."""

WITNESS_TRIES = 20
WORKER_LOOP = "instrument/loading/worker_loop.py"
BEGINNING = b'["check", 0]\n'
"""The first line of a file of lines: it says that a checksum follows the lines of each write."""


class Said(NamedTuple):
    """What a process says of a thread that can be read."""

    rank: int
    worker: int
    pid: int
    started: int
    thread: int
    native: int
    witness: int
    name: str
    version: tuple[int, int]
    origins: Origins

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Said:
        """Return what a file says; a wrong one raises a `ValueError`."""
        numbers = [content.get(name) for name in cls._fields[:7]]
        version, places = content.get("version"), []
        for name in ("folder", "python", "profkit"):
            places.append(content.get(name))
        if not all(type(number) is int and -1 <= number < 1 << 64 for number in numbers):
            raise ValueError("not a number")
        if not isinstance(version, list) or [type(part) for part in version] != [int, int]:
            raise ValueError("not a version")
        if not all(type(place) is str for place in places):
            raise ValueError("not a folder")
        name = str(content.get("name", ""))
        origins = Origins(*map(str, places))
        return cls._make((*numbers, name, (version[0], version[1]), origins))


class Thread:
    """A thread of another process: its stacks, and what the kernel says of it."""

    def __init__(self, said: Said) -> None:
        """Raise `ForbiddenError` or `UnknownPythonError` if it cannot be read."""
        self.said = said
        self.reader = StackReader(said.pid, said.version)
        self._check_witness()
        self._thread = self.reader.find(said.thread)
        self._torn = 0
        folder = f"/proc/{said.pid}/task/{said.native}"
        self._files: list[int] = []
        for name in ("stat", "syscall"):
            with contextlib.suppress(OSError):
                self._files.append(os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC))

    def _check_witness(self) -> None:
        """See that a frame that is known is read as it is."""
        reader, said = self.reader, self.said
        if said.witness <= 0:
            return
        for _ in range(WITNESS_TRIES):
            stack = reader.read(reader.find(said.witness)) or []
            for code, line in stack:
                name = code.co_qualname.rpartition(".")[2]
                if name == WITNESSED and "/lookout/" in code.co_filename and line > 0:
                    return
        name = ".".join(map(str, said.version))
        raise UnknownPythonError(f"the frames of this Python {name} are not as they should be")

    def read(self) -> Stack | None:
        """Return its stack now; `None` if the reading was torn."""
        stack = self.reader.read(self._thread)
        self._torn = 0 if stack is not None else self._torn + 1
        if self._torn > MOST_TORN:
            self._torn = 0
            with contextlib.suppress(UnknownPythonError):
                self._thread = self.reader.find(self.said.thread)
        return stack

    def state(self) -> tuple[str, str]:
        """Return the thread's state, and the system call that it is in."""
        try:
            state = os.pread(self._files[0], 512, 0).rpartition(b")")[2][1:2].decode()
            if state == "R" or len(self._files) < 2:
                return state, ""
            word = os.pread(self._files[1], 64, 0).split(maxsplit=1)[0]
        except (OSError, IndexError):
            return GONE, ""
        return state, name_call(int(word)) if word.isdigit() else ""

    @property
    def has_ended(self) -> bool:
        look = look_at(self.said.pid, self.said.native)
        is_other = look.started_ticks < self.said.started
        return look.state in ENDED_STATES or is_other

    def close(self) -> None:
        self.reader.close()
        while self._files:
            os.close(self._files.pop())


class Target:
    """A thread that is sampled, and its rows that are not written yet."""

    share = 1
    """Number of targets that share the rate."""

    is_worker = False

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self._random = random.Random()  # no secret
        self.frame_rows: list[tuple[Any, ...]] = []
        self.sample_rows: list[tuple[Any, ...]] = []
        self._table = FrameTable(self.frame_rows.append, thread.said.origins)
        self.began_ns = self.due_ns = now_ns()
        self._every_ns = 0

    def plan(self, slower: float) -> None:
        """Set the time of the next sample. In a loop of that period, one line would be all."""
        elapsed_s = (now_ns() - self.began_ns) / 1e9
        every_s = max(INTERVAL_S * self.share, elapsed_s / DENSE_SAMPLES) * slower
        self._every_ns = int(every_s * 1e9)
        self.due_ns = now_ns() + int(self._every_ns * self._random.uniform(0.5, 1.5))

    def sample(self) -> None:
        """Take a sample; it stands for the time for which this came late, too."""
        now = now_ns()
        places = self.thread.read()
        if places is None:
            return
        state, call = self.thread.state()
        if state in ENDED_STATES:
            return
        stack = self._table.store(self._cut(places))
        if stack != NOTHING:
            every_ns = self._every_ns + max(0, now - self.due_ns)
            self.sample_rows.append((now, 0, every_ns, stack, state, call or None))

    def _cut(self, places: Stack) -> Stack:
        return places


class RankTarget(Target):
    """The training thread of a rank. Its rows are in a folder of the rank's, as tables."""

    def __init__(self, thread: Thread, run: Path) -> None:
        super().__init__(thread)
        from profkit.trace.files import RankFiles  # imports Arrow, once there is something to write

        self._files = RankFiles(run / rank_folder(thread.said.rank) / EYE, thread.said.rank)

    def flush(self, cpu_ns: int) -> None:
        frames, samples = _columns(self.frame_rows), _columns(self.sample_rows)
        if frames:
            names = ("id", "parent", "file", "function", "line", "origin")
            self._files.write("frames", dict(zip(names, frames, strict=True)))
        if samples:
            names = ("time_ns", "late_ns", "every_ns", "stack", "state", "call")
            columns = dict(zip(names, samples, strict=True))
            columns["thread"] = [self.thread.said.name] * len(samples[0])
            self._files.write("stacks", columns)
            reader, now = self.thread.reader, now_ns()
            metrics = {EYE_CPU: cpu_ns, "taken_count": reader.taken, "torn_count": reader.torn}
            readings: dict[str, Sequence[Any]] = {
                "source": [EYE] * len(metrics),
                "metric": list(metrics),
                "time_ns": [now] * len(metrics),
                "value": list(map(float, metrics.values())),
            }
            self._files.write("samples", readings)

    def close(self) -> None:
        self._files.close()
        self.thread.close()


def _columns(rows: list[tuple[Any, ...]]) -> list[Sequence[Any]]:
    """Take all rows, and return their columns."""
    taken = rows[:]
    del rows[: len(taken)]
    return list(zip(*taken, strict=True))


class WorkerTarget(Target):
    """A worker of a rank's loader, whose samples are in a file of lines of its own.

    A line is whole, or the file ends in it. The last line of each write is a checksum of the lines
    before it, back to the last checksum.
    """

    is_worker = True

    def __init__(self, thread: Thread, run: Path, now: Callable[[], int] = now_ns) -> None:
        super().__init__(thread)
        said = thread.said
        folder = run / rank_folder(said.rank) / WORKER_STACKS
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        path = folder / f"{said.worker}-{said.pid}{LINES_SUFFIX}"
        self._file = os.open(path, flags | os.O_APPEND, 0o600)
        self._now = now
        self._lines: list[tuple[Any, ...]] = [("worker", said.worker, said.pid)]
        os.write(self._file, BEGINNING)

    def _cut(self, places: Stack) -> Stack:
        return cut_loop(places)

    def flush(self, cpu_ns: int) -> None:
        lines = [*self._lines]
        self._lines.clear()
        frames, samples = self.frame_rows[:], self.sample_rows[:]
        self.frame_rows.clear()
        self.sample_rows.clear()
        lines += [("frame", *row) for row in frames]
        lines += [("sample", *row[:4]) for row in samples]
        lines.append(("cost", self._now() - self.began_ns, cpu_ns))
        text = "".join(f"{json.dumps(line)}\n" for line in lines).encode("ascii")
        text += f"{json.dumps(('check', zlib.crc32(text)))}\n".encode("ascii")
        with contextlib.suppress(OSError):  # the disk is full
            os.write(self._file, text)

    def close(self) -> None:
        os.close(self._file)
        self.thread.close()


def cut_loop(places: Stack) -> Stack:
    """Leave out the frames outside of a worker's loop."""
    for number in range(len(places) - 1, -1, -1):
        if places[number][0].co_filename.endswith(WORKER_LOOP):
            return places[:number]
    return places


def make_target(said: Said, run: Path) -> RankTarget | WorkerTarget:
    """Return what samples a thread; raise an error that names the reason if it cannot be read."""
    try:
        thread = Thread(said)
    except ForbiddenError as error:
        raise UnknownPythonError(
            f"the system forbids reading the job's memory ({error})"
        ) from error
    return RankTarget(thread, run) if said.worker < 0 else WorkerTarget(thread, run)
