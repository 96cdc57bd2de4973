"""The places at which the jobs of the held-out variant hang: other functions on other lines."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time

FOREVER_S = 900.0


class Resizer:
    """A step of preparation, as a class."""

    def __call__(self) -> None:
        for _ in range(3):
            select.select([], [], [], FOREVER_S)  # site: sleep


def decode_sleeping() -> None:
    Resizer()()


def spin() -> None:
    number = 1
    while number:  # site: spin
        number = number * 3 % 1_000_003 + 1  # site: spin


def read_manifest(folder: str) -> bytes:
    ours, _theirs = socket.socketpair()
    with ours:
        return ours.recv(16)  # site: read


def take_lock() -> None:
    done = threading.Event()
    done.wait()  # site: lock


def take_from_queue() -> None:
    path = os.path.join(tempfile.gettempdir(), f"profkit-hangs-{os.getpid()}")
    with open(path, "w") as first, open(path, "w") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)  # site: queue


def call_native() -> None:
    seconds = int(FOREVER_S)
    ctypes.PyDLL(None).usleep(seconds * 1_000_000)  # site: native


def run_tool() -> None:
    with subprocess.Popen(["sleep", str(FOREVER_S)]) as tool:
        tool.wait()  # site: subprocess


def write_log() -> None:
    ours, _theirs = socket.socketpair()
    while True:
        ours.sendall(b"0" * 65_536)  # site: pipe


def fail() -> None:
    labels: dict[str, int] = {}
    labels["cat"] += 1  # site: raise


def stop() -> None:
    signal.raise_signal(signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGABRT)


def leave() -> None:
    os._exit(7)


def late(seconds: float) -> None:
    threading.Event().wait(seconds)  # site: late


class Judge:
    def validate(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:  # site: evaluate
            sorted(range(500))  # site: evaluate


def evaluate(model: object, seconds: float) -> None:
    Judge().validate(seconds)


def slow_backend(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:  # site: compile
        hash(until)  # site: compile


def wait_for_key(store: object) -> None:
    store.wait(["another key"])  # type: ignore[attr-defined]  # site: store


def before_joining() -> None:
    threading.Event().wait(FOREVER_S)  # site: join


def read_sample() -> None:
    threading.Event().wait(FOREVER_S)  # site: sample
