"""Collectors are read when due. A failing collector stops neither the others nor the job."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from profkit.collectors.base import Collector, Reading
from profkit.collectors.poller import MOST_READINGS, Pollers, rest_after
from profkit.collectors.process import ProcessCollector
from profkit.plugins import COLLECTORS
from profkit.schema import SCHEMAS
from profkit.testing import FakeClock
from profkit.vocab import EventKind
from tests.house.test_packaging import TOP

PAGE = TOP / "docs" / "collectors.md"
SECOND = 1_000_000_000
PATIENCE_S = 120
UNITS = (
    "seconds",
    "ns",
    "bytes",
    "count",
    "celsius",
    "watts",
    "joules",
    "hz",
    "mhz",
    "ratio",
    "percent",
    "bytes_per_s",
)


@dataclass
class Fake:
    """A collector that does what it is told, and counts how often it was read."""

    name: str = "fake"
    interval_s: float = 1.0
    act: Callable[[], Iterable[Reading]] = lambda: [Reading("tests_count", 1.0)]
    reads: int = 0
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def why_not(self) -> str:
        return ""

    def read(self) -> Iterable[Reading]:
        self.reads += 1
        return self.act()


class OwnWait(Fake):
    """A collector that decides itself when it is read."""

    ahead_s: float = 0.0

    def wait_s(self) -> float:
        return 0.01


@pytest.mark.parametrize(
    ("collector", "used_ms", "rest_s"),
    [
        (Fake(), 0.4, 0.2),
        (Fake(), 4.0, 2.0),
        (Fake(), 400.0, 5.0),
        (Fake(interval_s=0.1), 4.0, 0.5),
        (OwnWait(), 4.0, 0.0),
    ],
)
def test_a_reading_that_takes_much_of_a_processor_is_rarer(
    collector: Fake, used_ms: float, rest_s: float
) -> None:
    assert rest_after(collector, int(used_ms * 1e6)) == pytest.approx(rest_s)


def _fails() -> Iterable[Reading]:
    raise RuntimeError("the driver is gone")


def _fails_half_way() -> Iterator[Reading]:
    yield Reading("first_count", 1.0)
    raise RuntimeError("the driver is gone")


def _nowhere(row: tuple[Any, ...]) -> None:
    pass


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def _poll(
    collector: Collector, append: Callable[[tuple[Any, ...]], None], times: int = 1
) -> Pollers:
    clock = FakeClock(9)
    pollers = Pollers([collector], append, append, clock=clock)
    for _ in range(times):
        pollers.poll(collector)
        clock.advance(SECOND)
    return pollers


def test_the_wait_is_the_rest_of_the_interval() -> None:
    clock = FakeClock(5 * SECOND)

    def read() -> list[Reading]:
        clock.advance(SECOND * 3 // 10)
        return []

    often, seldom = Fake("often", 0.5, read), Fake("seldom", 2.0, read)
    pollers = Pollers([often, seldom], _nowhere, _nowhere, clock=clock)
    assert pollers.poll(often) == pytest.approx(0.2)
    assert pollers.poll(seldom) == pytest.approx(1.7)


def test_a_collector_that_says_when_is_called_then_however_long_the_last_reading_took() -> None:
    clock = FakeClock(5 * SECOND)

    def read() -> list[Reading]:
        clock.advance(SECOND * 6 // 1000)
        return []

    collector = OwnWait(act=read)
    collector.ahead_s = 0.004
    pollers = Pollers([collector], _nowhere, _nowhere, clock=clock)
    assert [pollers.poll(collector) for _ in range(3)] == pytest.approx([0.006] * 3)


def test_a_reading_that_took_long_does_not_make_the_wait_negative() -> None:
    clock = FakeClock()

    def slow() -> list[Reading]:
        clock.advance(7 * SECOND)
        return [Reading("x_count", 1.0)]

    collector = Fake(act=slow)
    assert Pollers([collector], _nowhere, _nowhere, clock=clock).poll(collector) == 0


def test_a_reading_is_a_row_of_samples() -> None:
    rows: list[tuple[Any, ...]] = []
    readings = [Reading("power_watts", 250, "cuda:1"), Reading("load_ratio", 0.5)]
    _poll(Fake("nvml", act=lambda: readings), rows.append)
    assert rows == [
        ("cuda:1", "nvml", "power_watts", 9, 250.0),
        (None, "nvml", "load_ratio", 9, 0.5),
    ]
    assert all(len(row) == len(SCHEMAS["samples"].names) - 1 for row in rows)


def _reads_words() -> Iterable[Any]:
    return [Reading("x_count", "many")]  # type: ignore[arg-type]  # what a plug-in may do


@pytest.mark.parametrize("failing", [_fails, _fails_half_way, _reads_words, lambda: 3])
def test_a_collector_that_raises_is_warned_of_once_and_counted(
    failing: Callable[[], Iterable[Reading]], caplog: pytest.LogCaptureFixture
) -> None:
    broken = Fake("broken", act=failing)
    with caplog.at_level(logging.WARNING, "profkit"):
        pollers = _poll(broken, _nowhere, times=4)
    assert broken.reads == 4
    assert pollers.failures == {"broken": 4}
    assert len([record for record in caplog.records if "broken" in record.message]) == 1


def test_what_was_read_before_a_failure_is_kept() -> None:
    rows: list[tuple[Any, ...]] = []
    _poll(Fake(act=_fails_half_way), rows.append)
    assert [row[2] for row in rows if row[1] == "fake"] == ["first_count"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_not_a_reading(value: float) -> None:
    rows: list[tuple[Any, ...]] = []
    _poll(Fake(act=lambda: [Reading("a_ratio", value), Reading("b_ratio", 1.0)]), rows.append)
    assert [row[2] for row in rows if row[1] == "fake"] == ["b_ratio"]


def _without_end() -> Iterator[Reading]:
    while True:
        yield Reading("x_count", 1.0)


@pytest.mark.parametrize(
    "rubbish",
    [
        ["no reading"],
        [Reading("Not A Name", 1.0)],
        [Reading(None, 1.0)],  # type: ignore[arg-type]  # what a plug-in may do
        [Reading("x_count", "3")],  # type: ignore[arg-type]
        [Reading("x_count", math.nan)],
        [Reading("x_count", 1.0, 7)],  # type: ignore[arg-type]
        [Reading("x_count", 1.0, "\x1b[2J")],
    ],
)
def test_rubbish_is_counted_and_not_written(rubbish: list[Any]) -> None:
    """A row that the writer could not write would take the whole batch with it."""
    rows: list[tuple[Any, ...]] = []
    pollers = _poll(Fake(act=lambda: [*rubbish, Reading("good_count", 2.0)]), rows.append)
    assert pollers.failures == {"fake": 1}
    assert [row[2:4] for row in rows] == [
        ("good_count", 9),
        (EventKind.FAILURE, "fake collector"),
    ]


def test_readings_without_end_end() -> None:
    rows: list[tuple[Any, ...]] = []
    _poll(Fake(act=_without_end), rows.append)
    assert len(rows) == MOST_READINGS


def test_a_hanging_collector_keeps_no_other_waiting_and_is_told_of() -> None:
    rows: list[tuple[Any, ...]] = []
    clock, reading, release = FakeClock(), threading.Event(), threading.Event()

    def hang() -> list[Reading]:
        reading.set()
        release.wait(PATIENCE_S)
        return [Reading("late_count", 1.0)]

    sound = Fake("sound", 0.0)
    pollers = Pollers([Fake("hanging", act=hang), sound], rows.append, rows.append, clock=clock)
    pollers.start()
    assert reading.wait(PATIENCE_S)
    assert _eventually(lambda: sound.reads > 3)
    clock.advance(5 * SECOND)
    pollers.stop(timeout_s=0.05)
    release.set()
    assert (None, 5 * SECOND, EventKind.HANG, "hanging collector", None, 5.0 * SECOND) in rows


def test_what_failed_is_in_the_rows_at_once_and_counted_at_the_end() -> None:
    rows: list[tuple[Any, ...]] = []
    broken = Fake("broken", 0.001, _fails)
    pollers = Pollers([broken], rows.append, rows.append)
    pollers.start()
    assert _eventually(lambda: broken.reads > 3)
    assert [row[-1] for row in rows] == [1.0]
    pollers.stop(timeout_s=PATIENCE_S)
    told = {row[2]: row[-1] for row in rows}
    assert told[EventKind.FAILURE] == broken.reads
    assert told["collectors_cpu_ns"] > 0


def test_what_a_collector_hung_into_the_process_is_taken_back() -> None:
    closed = []

    class Hung(Fake):
        def close(self) -> None:
            closed.append(self.name)

    pollers = Pollers([Hung()], _nowhere, _nowhere)
    pollers.start()
    pollers.stop(timeout_s=PATIENCE_S)
    assert closed == ["fake"]


def test_the_thread_reads_until_it_is_stopped() -> None:
    quick = Fake(interval_s=0.001)
    pollers = Pollers([quick], _nowhere, _nowhere)
    pollers.start()
    assert _eventually(lambda: quick.reads >= 3)
    pollers.stop(timeout_s=PATIENCE_S)
    reads = quick.reads
    time.sleep(0.02)
    assert quick.reads == reads


def test_a_collector_that_asks_for_it_is_read_once_more_at_the_end() -> None:
    """A job of less than a second would have one reading of each counter, and no rate."""

    class Counter(Fake):
        reads_at_end = True

    rows: list[tuple[Any, ...]] = []
    counter, other = Counter("counter", 1_000.0), Fake("other", 1_000.0)
    pollers = Pollers([counter, other], rows.append, rows.append)
    pollers.start()
    assert _eventually(lambda: bool(counter.reads and other.reads))
    pollers.stop(timeout_s=PATIENCE_S)
    assert (counter.reads, other.reads) == (2, 1)
    assert sum(row[1] == "counter" for row in rows) == 2


def test_a_collector_that_was_given_up_adds_no_row_later() -> None:
    reading, release = threading.Event(), threading.Event()

    def hang() -> Iterator[Reading]:
        reading.set()
        release.wait(PATIENCE_S)
        yield Reading("late_count", 1.0)

    class Hanging(Fake):
        reads_at_end = True

    rows: list[tuple[Any, ...]] = []
    pollers = Pollers([Hanging(act=hang)], rows.append, rows.append)
    pollers.start()
    assert reading.wait(PATIENCE_S)
    pollers.stop(timeout_s=0.05)
    release.set()
    pollers._threads[0].join(PATIENCE_S)
    assert not any(row[2] == "late_count" for row in rows)


def test_stop_does_not_wait_for_a_collector_that_hangs() -> None:
    reading, release = threading.Event(), threading.Event()

    def hang() -> list[Reading]:
        reading.set()
        release.wait(PATIENCE_S)
        return []

    pollers = Pollers([Fake(act=hang)], _nowhere, _nowhere)
    pollers.start()
    assert reading.wait(PATIENCE_S)
    pollers.stop(timeout_s=0.1)
    assert pollers._threads[0].is_alive()
    release.set()


def test_a_collector_that_ends_its_thread_does_not_end_the_others() -> None:
    """`SystemExit` is no error, and means nothing on a thread that is ours."""

    def leave() -> Iterable[Reading]:
        raise SystemExit(3)

    sound, leaving = Fake("sound", 0.001), Fake("leaving", 0.001, leave)
    pollers = Pollers([leaving, sound], _nowhere, _nowhere)
    pollers.start()
    assert _eventually(lambda: sound.reads >= 3)
    pollers.stop()
    assert pollers.failures["leaving"] >= 1


def test_without_collectors_there_is_nothing_to_wait_for() -> None:
    pollers = Pollers([], _nowhere, _nowhere)
    pollers.start()
    assert not pollers._threads
    pollers.stop(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("name", COLLECTORS.names())
def test_a_collector_keeps_its_contract(name: str) -> None:
    collector: Collector = COLLECTORS.load(name)
    assert collector.name == name
    assert collector.interval_s >= 0.01
    assert isinstance(collector.why_not(), str)
    if collector.why_not():
        return
    readings = list(collector.read())
    assert readings
    for reading in readings:
        assert isinstance(reading, Reading)
        assert math.isfinite(reading.value)
        assert re.fullmatch(r"[a-z0-9_]+", reading.metric)
        assert reading.metric.endswith(tuple(f"_{unit}" for unit in UNITS)), reading.metric
        assert reading.device is None or isinstance(reading.device, str)


def test_the_page_on_collectors_names_each_one_with_its_interval() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) s \|", PAGE.read_text(), re.MULTILINE)
    told = {name: float(interval) for name, interval in rows}
    assert told == {name: COLLECTORS.load(name).interval_s for name in COLLECTORS.names()}


def test_where_there_is_no_proc_the_process_collector_says_so(tmp_path: Path) -> None:
    assert str(tmp_path) in ProcessCollector(proc=tmp_path).why_not()
