"""The places at which the jobs of the development variant hang. `site:` marks the line."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import threading
import time

FOREVER_S = 600.0


def decode_sleeping() -> None:
    time.sleep(FOREVER_S)  # site: sleep


def spin() -> None:
    while True:  # site: spin
        pass  # site: spin


def read_manifest(folder: str) -> bytes:
    path = os.path.join(folder, f"manifest-{os.getpid()}")
    os.mkfifo(path)
    file = os.open(path, os.O_RDWR)
    return os.read(file, 1)  # site: read


def take_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # site: lock


def take_from_queue() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    waiting.get()  # site: queue


def call_native() -> None:
    library = ctypes.PyDLL(None)  # holds the interpreter, unlike CDLL
    library.sleep(int(FOREVER_S))  # site: native


def run_tool() -> None:
    subprocess.run(["sleep", str(FOREVER_S)], check=True)  # site: subprocess


def write_log() -> None:
    _, writing = os.pipe()
    while True:
        os.write(writing, b"a line of a log\n" * 100)  # site: pipe


def fail() -> None:
    raise ValueError("a sample has no label")  # site: raise


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(1)


def late(seconds: float) -> None:
    time.sleep(seconds)  # site: late


def evaluate(model: object, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:  # site: evaluate
        sum(range(1000))  # site: evaluate


def slow_backend(seconds: float) -> None:
    time.sleep(seconds)  # site: compile


def wait_for_key(store: object) -> None:
    store.get("a key that nobody sets")  # type: ignore[attr-defined]  # site: store


def before_joining() -> None:
    time.sleep(FOREVER_S)  # site: join


def read_sample() -> None:
    time.sleep(FOREVER_S)  # site: sample
