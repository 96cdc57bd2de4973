"""The places at which the jobs of the development variant hang. `site:` marks the line."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable

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


def wait_for_key(store: object, keys: object) -> None:
    store.get("a key that nobody sets")  # type: ignore[attr-defined]  # site: store


def before_joining() -> None:
    time.sleep(FOREVER_S)  # site: join


def read_sample() -> None:
    time.sleep(FOREVER_S)  # site: sample


def wait_for_helper() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(signal.raise_signal, (signal.SIGKILL,))  # site: helper


def cross_locks() -> None:
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take_in_other_order() -> None:
        with second:
            both.wait()
            first.acquire()

    threading.Thread(target=take_in_other_order, daemon=True).start()
    with first:
        both.wait()
        second.acquire()  # site: deadlock


def ask_server() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/labels")  # site: network


def run_coroutine() -> None:
    asyncio.run(asyncio.sleep(FOREVER_S))  # site: coroutine


def wait_for_file(folder: str) -> None:
    while not os.path.exists(os.path.join(folder, "preprocessed")):  # site: file
        time.sleep(0.1)  # site: file


def log_line() -> None:
    handler, held = logging.StreamHandler(), threading.Event()

    def keep_lock() -> None:
        with handler.lock:  # type: ignore[union-attr]  # every handler has one here
            held.set()
            time.sleep(FOREVER_S)

    logger = logging.getLogger("train")
    logger.addHandler(handler)
    threading.Thread(target=keep_lock, daemon=True).start()
    held.wait()
    logger.warning("a sample is too large")  # site: logging


def crash() -> None:
    ctypes.string_at(0)


def quit_early() -> None:
    sys.exit(3)


def wait_for_device(synchronize: Callable[[], object]) -> None:
    synchronize()  # site: device
