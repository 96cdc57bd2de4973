"""Samples the stack of a data loader's worker, from a thread in the worker's own process."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
import zlib
from collections.abc import Callable
from types import CodeType
from typing import Any

from profkit.clock import now_ns
from profkit.collectors._thread_stacks import ahead_s, look
from profkit.collectors.stacks import NOTHING, FrameTable, mean_wait_s
from profkit.vocab import LINES_SUFFIX

log = logging.getLogger("profkit")

FLUSH_NS = 500_000_000
"""Samples are in the file this long after they were taken, as the rows of the training process."""

NOT_STORED = "the stacks of a loader worker are not stored"

MOST_WAITING = 4_000
"""Lines kept until the folder is known: a process that never trains stores nothing."""


BEGINNING = b'["check", 0]\n'
"""The first line: it says that a checksum follows the lines of each write."""


class WorkerSampler:
    """Takes samples of one thread and appends them, as lines of JSON, to a file of its own.

    It needs neither Arrow nor a lock that a fork could have copied while it was held. A line is
    whole, or the file ends in it: a killed worker loses what it took in the last half second. The
    last line of each write is a checksum of the lines before it, back to the last checksum.
    """

    def __init__(self, folder: Callable[[], str | None], worker: int, loop: CodeType) -> None:
        self._folder, self._worker, self._loop = folder, worker, loop
        self._thread_id = threading.get_ident()
        self._ending = threading.Event()
        self._lines: list[tuple[Any, ...]] = [("worker", worker, os.getpid())]
        self._frames = FrameTable(lambda row: self._lines.append(("frame", *row)))
        self._random = random.Random()  # the job's own generator must not move
        self._file = -1
        self._thread = threading.Thread(target=self._run, name="profkit-stacks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Write what was taken. A disk that hangs delays the worker's end by half a second."""
        self._ending.set()
        self._thread.join(FLUSH_NS / 1e9)

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001  # our errors must not stop the worker
            log.warning("profkit: %s: %s", NOT_STORED, error)

    def _sample(self) -> None:
        began_ns = written_ns = now_ns()
        while True:
            every_s = mean_wait_s((now_ns() - began_ns) / 1e9)
            wait_s = every_s * self._random.uniform(0.5, 1.5)
            due_ns = now_ns() + int(wait_s * 1e9)
            if self._ending.wait(max(0.0, wait_s - ahead_s())):
                break
            seen = look(self._thread_id, due_ns, below=self._loop)
            stack = self._frames.store(seen.places)
            if stack != NOTHING:
                every_ns = int(every_s * 1e9) + seen.longer_ns
                self._lines.append(("sample", seen.time_ns, seen.late_ns, every_ns, stack))
            now = now_ns()
            if now - written_ns >= FLUSH_NS:
                written_ns = now
                self._lines.append(("cost", now - began_ns, time.thread_time_ns()))
                if not self._write():
                    return
        self._lines.append(("cost", now_ns() - began_ns, time.thread_time_ns()))
        self._write()

    def _write(self) -> bool:
        """Append the waiting lines in one write; return false if there is no use in going on."""
        if self._file < 0:
            folder = self._folder()
            if not folder and folder is not None and len(self._lines) >= MOST_WAITING:
                log.warning("profkit: %s: its rank did not train", NOT_STORED)
                return False
            if not folder:
                return folder is not None
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, f"{self._worker}-{os.getpid()}{LINES_SUFFIX}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(path, flags | os.O_APPEND, 0o600)
            os.write(self._file, BEGINNING)
        lines = self._lines[:]
        del self._lines[: len(lines)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines).encode("ascii")
        text += f"{json.dumps(('check', zlib.crc32(text)))}\n".encode("ascii")
        return os.write(self._file, text) == len(text)


def sample_worker(
    folder: Callable[[], str | None], worker: int, loop: CodeType
) -> Callable[[], None]:
    """Sample the calling thread from now on; return what ends that."""
    sampler = WorkerSampler(folder, worker, loop)
    sampler.start()
    return sampler.finish
