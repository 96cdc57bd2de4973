"""The machine's files as Linux writes them, garbage collections, and memory of allocators."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from pathlib import Path
from types import BuiltinFunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from profkit.clock import now_ns
from profkit.collectors import garbage
from profkit.collectors.allocator import AllocatorCollector
from profkit.collectors.base import Inside, Reading
from profkit.collectors.garbage import GarbageCollector, Pauses, compiled
from profkit.collectors.host import HostCollector
from profkit.collectors.process import ProcessCollector
from profkit.testing import FakeClock

FILES = {
    "proc/stat": "cpu  1000 200 300 4000 50 60 70 80 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n",
    "proc/loadavg": "3.17 2.90 2.11 5/321 4242\n",
    "proc/meminfo": (
        "MemTotal: 1000 kB\nMemAvailable: 400 kB\nCached: 300 kB\n"
        "SwapTotal: 100 kB\nSwapFree: 75 kB\n"
    ),
    "proc/vmstat": "pgfault 777\npgmajfault 3\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\nthrottled_usec 2500000\n",
    "proc/diskstats": (
        " 8 0 sda 1 0 10 0 2 0 20 0 0 0 0\n"
        " 8 1 sda1 1 0 10 0 2 0 20 0 0 0 0\n"
        " 7 0 loop0 1 0 9 0 0 0 9 0 0 0 0\n"
    ),
    "sys/block/sda": "",
    "sys/block/loop0": "",
    "proc/net/dev": (
        "Inter-| Receive | Transmit\n face |bytes\n  eth0: 100 1 0 0 0 0 0 0 250 2 0 0 0 0 0 0\n"
    ),
    "proc/self/task/7/children": "41 42 ",
    "proc/41/schedstat": "2000000000 750000000 88\n",
    "proc/41/stat": "41 (pt data (x) S 7 7 7 0 -1 0 9 0 4 0 150 50 0 0 20 0 1 0 99 1000 25\n",
}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def _read(root: Path) -> dict[tuple[str, str | None], float]:
    return {
        (reading.metric, reading.device): reading.value
        for reading in HostCollector(root=root).read()
    }


def test_everything_of_the_machine_is_read(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    found = _read(machine)
    assert found["cpu_busy_seconds", None] == pytest.approx(16.3)
    assert found["cpu_disk_wait_seconds", None] == pytest.approx(0.5)
    assert found["cpu_stolen_seconds", None] == pytest.approx(0.8)
    assert (found["run_queue_count", None], found["threads_count", None]) == (5, 321)
    assert (found["memory_available_bytes", None], found["swap_used_bytes", None]) == (
        409_600,
        25_600,
    )
    assert (found["page_faults_count", None], found["major_page_faults_count", None]) == (777, 3)
    assert found["cpu_throttled_seconds", None] == 2.5
    assert (found["disk_read_bytes", "sda"], found["disk_written_bytes", "sda"]) == (5_120, 10_240)
    assert {device for metric, device in found if metric == "disk_read_bytes"} == {"sda"}
    assert (found["network_received_bytes", "eth0"], found["network_sent_bytes", "eth0"]) == (
        100,
        250,
    )
    assert found["worker_cpu_seconds", "process 41"] == pytest.approx(2.0)
    assert found["worker_major_faults_count", "process 41"] == 4
    assert found["worker_cpu_wait_seconds", "process 41"] == 0.75
    assert ("worker_cpu_seconds", "process 42") not in found


@pytest.mark.parametrize("missing", sorted(FILES))
def test_what_one_file_does_not_tell_the_others_do(
    machine: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    (machine / missing).unlink()
    assert len(_read(machine)) > 10
    (machine / missing).write_text("nonsense\n")
    assert len(_read(machine)) > 10


def test_of_several_ranks_the_first_speaks_for_the_machine(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert {metric for metric, _ in _read(machine)} == {
        "worker_cpu_seconds",
        "worker_cpu_wait_seconds",
        "worker_major_faults_count",
        "worker_resident_bytes",
    }


def test_where_there_is_no_proc_it_says_so(tmp_path: Path) -> None:
    assert str(tmp_path) in HostCollector(root=tmp_path).why_not()


def test_the_real_machine_shows_a_process_that_was_started() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = {
            reading.device
            for reading in HostCollector().read()
            if reading.metric == "worker_resident_bytes"
        }
        child.communicate(b"\n")
    assert f"process {child.pid}" in found


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        (("5000 1500000000 3", "9000 500000000 3"), 2.0),
        (("5000 0 3",), 0.0),
        (("0 0 0", "0 0 0"), None),
        ((), None),
    ],
)
def test_waits_for_a_core_are_those_of_all_threads(
    tmp_path: Path, waits: tuple[str, ...], seconds: float | None
) -> None:
    """A kernel that does not count them has no files, or files of zeros."""
    fields = ["0"] * 50
    (tmp_path / "stat").write_text(f"7 (a (b)) {' '.join(fields)}")
    (tmp_path / "statm").write_text("1 1 1")
    (tmp_path / "task").mkdir()
    for number, words in enumerate(waits):
        (tmp_path / "task" / str(number)).mkdir()
        (tmp_path / "task" / str(number) / "schedstat").write_text(words)
    found = {reading.metric: reading.value for reading in ProcessCollector(proc=tmp_path).read()}
    assert found.get("cpu_wait_seconds") == seconds
    assert "resident_bytes" in found


def test_waits_of_threads_that_ended_still_count(tmp_path: Path) -> None:
    """The sum never falls, also if a new thread has the number of an old one."""
    waits: dict[int, int] = {}
    (tmp_path / "stat").write_text(f"7 (a) {' '.join(['0'] * 50)}")
    (tmp_path / "statm").write_text("1 1 1")
    collector = ProcessCollector(proc=tmp_path)

    def read() -> float:
        shutil.rmtree(tmp_path / "task", ignore_errors=True)
        for thread, waited_ns in waits.items():
            (tmp_path / "task" / str(thread)).mkdir(parents=True)
            (tmp_path / "task" / str(thread) / "schedstat").write_text(f"5000 {waited_ns} 3")
        found = {each.metric: each.value for each in collector.read()}
        return found["cpu_wait_seconds"]

    waits |= {7: 1_000_000_000, 8: 3_000_000_000}
    assert read() == 4.0
    del waits[8]
    assert read() == 4.0
    waits |= {8: 500_000_000}
    assert read() == 4.5
    waits |= {7: 2_000_000_000, 8: 250_000_000}
    assert read() == pytest.approx(5.75)


def _values(collector: GarbageCollector) -> dict[str, float]:
    return {reading.metric: reading.value for reading in collector.read()}


def test_each_collection_is_timed_until_it_is_closed() -> None:
    clock = FakeClock(5)
    timer = Pauses(clock)
    collector = GarbageCollector(timer)
    before = len(gc.callbacks)
    assert _values(collector) == {"pause_seconds": 0, "collections_count": 0, "longest_pause_ns": 0}
    for took in (3_000_000, 8_000_000):
        timer.note_collection("start", {})
        clock.advance(took)
        timer.note_collection("stop", {})
    assert _values(collector) == {
        "pause_seconds": pytest.approx(0.011),
        "collections_count": 2,
        "longest_pause_ns": 8_000_000,
    }
    assert _values(collector)["longest_pause_ns"] == 0
    assert len(gc.callbacks) == before + 1
    collector.close()
    assert len(gc.callbacks) == before


@pytest.mark.parametrize("timer", [compiled, Pauses()], ids=["C", "Python"])
def test_real_collections_are_timed(timer: Any) -> None:
    if timer is None:
        pytest.skip("profkit was installed without a compiler")
    collector = GarbageCollector(timer)
    gc.disable()
    try:
        before = _values(collector)
        began_ns = now_ns()
        for _ in range(3):
            gc.collect()
        took_s = (now_ns() - began_ns) / 1e9
        after = _values(collector)
        assert _values(collector)["longest_pause_ns"] == 0
    finally:
        gc.enable()
        collector.close()
    assert after["collections_count"] == before["collections_count"] + 3
    pause_s = after["pause_seconds"] - before["pause_seconds"]
    assert 0 < after["longest_pause_ns"] / 1e9 < pause_s < took_s


def test_collections_are_not_timed_by_python_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python 3.11 that may end a process in which another library reads stacks."""
    if compiled is not None:
        assert isinstance(compiled.note_collection, BuiltinFunctionType)
        assert GarbageCollector().why_not() == ""
    for is_at_risk in (True, False):
        monkeypatch.setattr(garbage, "AT_RISK", is_at_risk)
        assert ("install with a C compiler" in GarbageCollector(None).why_not()) is is_at_risk


def _modules(**modules: Any) -> dict[str, ModuleType]:
    return modules


def test_the_allocator_of_a_framework_on_a_gpu() -> None:
    stats = {
        "allocated_bytes.all.current": 5,
        "allocated_bytes.all.peak": 9,
        "reserved_bytes.all.current": 12,
        "num_alloc_retries": 1,
        "else": 3,
    }
    cuda = SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 2, memory_stats=lambda device: stats
    )
    collector = AllocatorCollector(_modules(torch=SimpleNamespace(cuda=cuda)))
    assert collector.why_not() == ""
    assert list(collector.read()) == [
        Reading("allocated_bytes", 5, "cuda:2"),
        Reading("allocated_peak_bytes", 9, "cuda:2"),
        Reading("reserved_bytes", 12, "cuda:2"),
        Reading("allocation_retries_count", 1, "cuda:2"),
    ]


def test_the_allocator_is_asked_for_the_device_that_the_job_trains_on() -> None:
    """Each thread has a device of its own, and that of a new thread is the first one."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        memory_stats=lambda device: {"reserved_bytes.all.current": 100 * device},
    )
    collector = AllocatorCollector(_modules(torch=SimpleNamespace(cuda=cuda)))
    collector.watch(Inside(1, "MainThread", bool, print, print, device="cuda:3"))
    assert list(collector.read()) == [Reading("reserved_bytes", 300, "cuda:3")]


def test_the_allocator_of_paddle() -> None:
    memory = SimpleNamespace(
        memory_allocated=lambda: 5, max_memory_allocated=lambda: 9, memory_reserved=lambda: 12
    )
    device = SimpleNamespace(
        is_compiled_with_cuda=lambda: True, get_device=lambda: "gpu:1", cuda=memory
    )
    found = list(AllocatorCollector(_modules(paddle=SimpleNamespace(device=device))).read())
    assert found[0] == Reading("allocated_bytes", 5, "cuda:1")
    assert len(found) == 3


def test_a_process_on_the_cpu_has_no_device_memory() -> None:
    idle = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    assert AllocatorCollector(_modules(torch=idle)).why_not()
    assert list(AllocatorCollector(_modules()).read()) == []
