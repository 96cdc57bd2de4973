"""The places at which the jobs hang. `site:` marks the line."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import glob
import logging
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable

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


def wait_for_key(store: object, keys: object) -> None:
    store.wait(keys)  # type: ignore[attr-defined]  # site: store


def before_joining() -> None:
    threading.Event().wait(FOREVER_S)  # site: join


def read_sample() -> None:
    threading.Event().wait(FOREVER_S)  # site: sample


def wait_for_helper() -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.queues.SimpleQueue[int] = context.SimpleQueue()
    helper = context.Process(target=os._exit, args=(1,), daemon=True)
    helper.start()
    helper.join()
    answers.get()  # site: helper


def cross_locks() -> None:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()  # site: deadlock


def ask_server() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as client, client.makefile() as answer:
        answer.readline()  # site: network


async def fetch() -> None:
    await asyncio.get_running_loop().create_future()


def run_coroutine() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(fetch())  # site: coroutine


def wait_for_file(folder: str) -> None:
    while not glob.glob(os.path.join(folder, "*.ready")):  # site: file
        threading.Event().wait(0.05)  # site: file


class Courier(logging.Handler):
    """A handler whose receiver does not take the record."""

    def emit(self, record: logging.LogRecord) -> None:
        threading.Event().wait()  # site: logging


def log_line() -> None:
    logger = logging.getLogger("courier")
    logger.addHandler(Courier())
    logger.error("a sample is too large")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def quit_early() -> None:
    raise SystemExit("no space is left")


class Clock:
    def stop(self, synchronize: Callable[[], object]) -> None:
        synchronize()  # site: device


def wait_for_device(synchronize: Callable[[], object]) -> None:
    Clock().stop(synchronize)
