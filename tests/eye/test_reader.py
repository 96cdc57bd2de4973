"""Stacks of another process that runs: nothing that is shown is wrong, and it is not harmed."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import select
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from profkit.clock import now_ns
from profkit.collectors._frame_table import FrameTable
from profkit.collectors._origins import Origins
from profkit.eye import memory
from profkit.eye import reader as reader_module
from profkit.eye.following import follow_slowly
from profkit.eye.layout import UnknownPythonError, find_layout
from profkit.eye.memory import Memory
from profkit.eye.reader import StackReader
from profkit.eye.targets import NoWitnessError, RankRows, Said, Target, Thread
from tests.eye.breaker import read_program, what_is_wrong
from tests.house.test_python_versions import interpreters

WAITS = """
import sys, threading

def inner(number):
    yield number
    print(threading.get_ident(), *sys.version_info[:2], flush=True)
    sys.stdin.read()

def outer():
    return sorted([1], key=lambda number: list(inner(number)))

outer()
"""


@pytest.mark.parametrize("python", interpreters())
def test_a_thread_that_waits_is_seen_as_it_is(python: str, tmp_path: Path) -> None:
    path = tmp_path / "wäits.py"
    path.write_text(WAITS)
    with subprocess.Popen(
        [python, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        number, major, minor = map(int, process.stdout.readline().split())
        reader = StackReader(process.pid, (major, minor))
        stack = None
        while not stack or stack[0][1] != 7:  # it is about to wait
            stack = reader.read(reader.find(number))
        names = [(code.co_qualname.rpartition(".")[2], line) for code, line in stack]
        assert names == [("inner", 7), ("<lambda>", 10), ("outer", 10), ("<module>", 12)]
        assert {code.co_filename for code, _ in stack} == {str(path)}
        process.communicate("")


def test_a_process_without_its_witness_is_about_to_end(tmp_path: Path) -> None:
    """A job that reads what it has captured has ended its other threads, and is no odd Python."""
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    with subprocess.Popen(
        [sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        number, *version = map(int, process.stdout.readline().split())
        origins = Origins("", "", "")
        said = Said(
            0, -1, process.pid, 0, number, process.pid, 1, "", (version[0], version[1]), origins
        )
        with pytest.raises(NoWitnessError):
            Thread(said)
        with pytest.raises(UnknownPythonError, match="not where it should be") as found:
            Thread(said._replace(thread=1))
        assert not isinstance(found.value, NoWitnessError)
        process.communicate("")


@pytest.mark.parametrize("python", interpreters())
def test_nothing_is_wrong_of_a_program_made_to_break_readers(python: str, tmp_path: Path) -> None:
    told = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    )
    major, minor = map(int, told.stdout.split())
    reader, wrong, code = read_program(python, (major, minor), str(tmp_path / "breaker.py"), 2_000)
    assert code is None  # it runs on
    assert set(wrong) == {""}
    assert reader.torn < reader.taken / 2


TURNS = """
import sys, threading, time

def step(number):
    return number + 1

def quick(number):
    return step(number) + step(-number)

def many():
    return sorted(range(3_000), key=quick)

def one():
    return sum(range(60_000))

print(threading.get_ident(), *sys.version_info[:2], flush=True)
spent, ends = [0.0, 0.0], time.perf_counter() + 1.5
while time.perf_counter() < ends:
    for number, part in enumerate((many, one)):
        begins = time.perf_counter()
        part()
        spent[number] += time.perf_counter() - begins
print(spent[0] / sum(spent), flush=True)
"""


@pytest.mark.parametrize("python", interpreters())
def test_a_function_that_calls_many_short_ones_is_seen_for_its_time(
    python: str, tmp_path: Path
) -> None:
    """A reading that waits until nothing changes finds the thread where it calls nothing."""
    path = tmp_path / "turns.py"
    path.write_text(TURNS)
    seen: Counter[str] = Counter()
    with subprocess.Popen([python, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number, major, minor = map(int, process.stdout.readline().split())
        reader = StackReader(process.pid, (major, minor))
        thread = reader.find(number)
        while not select.select([process.stdout], [], [], random.uniform(0.001, 0.003))[0]:
            for code, _ in reader.read(thread) or ():
                seen[code.co_qualname] += 1
        share = float(process.stdout.readline())
    assert abs(seen["many"] / (seen["many"] + seen["one"]) - share) < 0.12
    assert reader.torn < 0.1 * reader.taken


def test_python_alone_does_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_read", memory.read_slowly)
    monkeypatch.setattr(reader_module, "follow", follow_slowly)
    path = str(tmp_path / "breaker.py")
    _, wrong, code = read_program(sys.executable, sys.version_info[:2], path, 500)
    assert (set(wrong), code) == ({""}, None)


def test_memory_is_read_through_proc_if_the_call_is_filtered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Filtered:
        def process_vm_readv(self, *arguments: object) -> int:
            ctypes.set_errno(errno.EPERM)
            return -1

    monkeypatch.setattr(memory, "_libc", Filtered())
    path = str(tmp_path / "breaker.py")
    _, wrong, _ = read_program(sys.executable, sys.version_info[:2], path, 50, ["sleeping"])
    assert set(wrong) == {""}


def test_a_version_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(UnknownPythonError, match=r"Python 3\.99 is not known"):
        find_layout(Memory(os.getpid()), 0, (3, 99))


class _Thread:
    """A thread that stands at one place."""

    said = SimpleNamespace(origins=Origins(), worker=-1, name="MainThread")

    def read(self) -> list[tuple[CodeType, int]]:
        return [(test_the_first_sample_stands_for_no_time_before_it.__code__, 1)]

    def state(self) -> tuple[str, str]:
        return "R", ""

    def waited_share(self) -> float | None:
        return None


class _Rows(RankRows):
    """Rows that are only kept."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []

    def frame_table(self, origins: Origins) -> FrameTable:
        return FrameTable(lambda row: None, origins)

    def count(self, *, torn: bool) -> None:
        assert not torn

    def add(self, *row: Any) -> None:
        self.kept.append(row)


def test_the_first_sample_stands_for_no_time_before_it() -> None:
    began_ns, rows = now_ns(), _Rows()
    Target(_Thread(), rows).sample()  # type: ignore[arg-type]
    ((_, _, every_ns, *_),) = rows.kept
    assert 0 <= every_ns <= now_ns() - began_ns


@pytest.mark.parametrize("garbage", [2**64 - 1, 2**64 - 8, 2**56])
def test_what_is_torn_is_no_address(garbage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StackReader(os.getpid(), sys.version_info[:2])
    thread = reader.find(threading.get_ident())
    monkeypatch.setattr(Memory, "number", lambda self, address: garbage)
    assert reader.read(thread) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames do not say what they belong to")
def test_a_generator_that_nobody_has_called_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, and its frame has no other above it any more."""
    code = what_is_wrong.__code__
    reader = StackReader(os.getpid(), sys.version_info[:2])
    thread, begin = reader.find(threading.get_ident()), id(code) + reader.layout.code[4]
    found = (id(code),), (begin + 2 * 40,), (reader_module.GENERATOR,)
    monkeypatch.setattr(reader_module, "follow", lambda *arguments: found)
    assert {reader.read(thread) is None for _ in range(5)} == {True}
