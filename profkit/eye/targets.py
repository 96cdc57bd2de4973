"""The threads that the eye samples, and the files that it writes of each rank."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from profkit.clock import now_ns
from profkit.collectors._frame_table import NOTHING, FrameTable, KnownFrames
from profkit.collectors._origins import Origins
from profkit.eye.layout import UnknownPythonError
from profkit.eye.memory import ForbiddenError
from profkit.eye.reader import Stack, StackReader
from profkit.hangs.processes import ENDED_STATES, GONE, look_at, name_call
from profkit.vocab import EYE, EYE_CPU, LOADER_WORKER

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


class NoWitnessError(UnknownPythonError):
    """The thread that trains is there, and that by which the reading is checked has ended."""


class Thread:
    """A thread of another process: its stacks, and what the kernel says of it."""

    def __init__(self, said: Said) -> None:
        """Raise `ForbiddenError` or `UnknownPythonError` if it cannot be read."""
        self.said = said
        self.reader = StackReader(said.pid, said.version)
        try:
            self._thread = self.reader.find(said.thread)
            self._check_witness()
        except UnknownPythonError:
            self.reader.close()
            raise
        self._torn = 0
        folder = f"/proc/{said.pid}/task/{said.native}"
        self._files: dict[str, int] = {}
        for name in ("stat", "syscall", "schedstat"):
            with contextlib.suppress(OSError):
                self._files[name] = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        self._ran_ns = self._waited_ns = 0
        self.waited_share()

    def _check_witness(self) -> None:
        """See that a frame that is known is read as it is."""
        reader, said = self.reader, self.said
        if said.witness <= 0:
            return
        try:
            witness = reader.find(said.witness)
        except UnknownPythonError as error:
            raise NoWitnessError("the process is about to end") from error
        for _ in range(WITNESS_TRIES):
            stack = reader.read(witness) or []
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
            state = self._content("stat").rpartition(b")")[2][1:2].decode()
            if state == "R" or "syscall" not in self._files:
                return state, ""
            word = self._content("syscall").split(maxsplit=1)[0]
        except (OSError, IndexError, KeyError):
            return GONE, ""
        return state, name_call(int(word)) if word.isdigit() else ""

    def waited_share(self) -> float | None:
        """Return how much of the time since the last call, less its sleep, it waited for a core.

        It is `None` if it only slept, or if the kernel does not say.
        """
        try:
            ran_ns, waited_ns = map(int, self._content("schedstat").split()[:2])
        except (OSError, ValueError, KeyError):
            return None
        ran, waited = ran_ns - self._ran_ns, waited_ns - self._waited_ns
        self._ran_ns, self._waited_ns = ran_ns, waited_ns
        return waited / (ran + waited) if ran + waited > 0 else None

    def _content(self, name: str) -> bytes:
        return os.pread(self._files[name], 512, 0)

    @property
    def has_ended(self) -> bool:
        look = look_at(self.said.pid, self.said.native)
        is_other = look.started_ticks < self.said.started
        return look.state in ENDED_STATES or is_other

    def close(self) -> None:
        self.reader.close()
        while self._files:
            os.close(self._files.popitem()[1])


class RankRows:
    """The rows of all threads of a rank, in a folder of the rank's, as tables."""

    def __init__(self, folder: Path, rank: int) -> None:
        from profkit.trace.files import RankFiles  # imports Arrow, once there is something to write

        self._files = RankFiles(folder, rank)
        self._frames: list[tuple[Any, ...]] = []
        self._samples: list[tuple[Any, ...]] = []
        self._known: KnownFrames = {}
        self._taken = self._torn = 0

    def frame_table(self, origins: Origins) -> FrameTable:
        """Return what numbers the frames of one thread among those of all."""
        return FrameTable(self._frames.append, origins, self._known)

    def count(self, *, torn: bool) -> None:
        self._taken += 1
        self._torn += torn

    def add(self, *row: Any) -> None:
        self._samples.append(row)

    def flush(self, cpu_ns: int) -> None:
        frames, samples = _columns(self._frames), _columns(self._samples)
        if frames:
            names = ("id", "parent", "file", "function", "line", "origin")
            self._files.write("frames", dict(zip(names, frames, strict=True)))
        if samples:
            columns = [
                "time_ns",
                "late_ns",
                "every_ns",
                "thread",
                "stack",
                "state",
                "call",
                "waited_share",
            ]
            self._files.write("stacks", dict(zip(columns, samples, strict=True)))
            metrics = {EYE_CPU: cpu_ns, "taken_count": self._taken, "torn_count": self._torn}
            readings: dict[str, Sequence[Any]] = {
                "source": [EYE] * len(metrics),
                "metric": list(metrics),
                "time_ns": [now_ns()] * len(metrics),
                "value": list(map(float, metrics.values())),
            }
            self._files.write("samples", readings)

    def close(self) -> None:
        self._files.close()


def _columns(rows: list[tuple[Any, ...]]) -> list[Sequence[Any]]:
    """Take all rows, and return their columns."""
    taken = rows[:]
    del rows[: len(taken)]
    return list(zip(*taken, strict=True))


class Target:
    """A thread that is sampled: that which trains, or a worker of its loader."""

    share = 1
    """Number of targets that share the rate."""

    def __init__(
        self,
        thread: Thread,
        rows: RankRows,
        look: Callable[[Stack, Said], None] = lambda places, said: None,
    ) -> None:
        """Let `look` see each stack as well."""
        self.thread, said, self._look = thread, thread.said, look
        self.is_worker = said.worker >= 0
        self._name = f"{LOADER_WORKER}{said.worker}" if self.is_worker else said.name
        self._random = random.Random()  # no secret
        self._rows, self._table = rows, rows.frame_table(said.origins)
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
        self._rows.count(torn=places is None)
        if places is None:
            return
        state, call = self.thread.state()
        if state in ENDED_STATES:
            return
        stack = self._table.store(cut_loop(places) if self.is_worker else places)
        if stack != NOTHING:
            every_ns = self._every_ns + max(0, now - self.due_ns)
            waited = self.thread.waited_share()
            self._rows.add(now, 0, every_ns, self._name, stack, state, call or None, waited)
            self._look(places, self.thread.said)

    def close(self) -> None:
        self.thread.close()


def cut_loop(places: Stack) -> Stack:
    """Leave out the frames outside of a worker's loop."""
    for number in range(len(places) - 1, -1, -1):
        if places[number][0].co_filename.endswith(WORKER_LOOP):
            return places[:number]
    return places


def open_thread(said: Said) -> Thread:
    """Return what reads a thread; raise an error that names the reason if it cannot be read."""
    try:
        return Thread(said)
    except ForbiddenError as error:
        raise UnknownPythonError(
            f"the system forbids reading the job's memory ({error})"
        ) from error
