"""Processor time of the job's Python threads other than the main one."""

from __future__ import annotations

import threading
import time

import pytest

from profkit.collectors.process import ProcessCollector

METRIC = "python_threads_cpu_seconds"


def _read(collector: ProcessCollector) -> float:
    return next(each.value for each in collector.read() if each.metric == METRIC)


def _work(until: threading.Event, for_s: float) -> None:
    end = time.thread_time() + for_s
    while time.thread_time() < end:
        pass
    until.wait()


@pytest.mark.parametrize(("name", "counts"), [("exporter", True), ("profkit-writer", False)])
def test_threads_of_the_job_count_also_after_their_end(name: str, counts: bool) -> None:
    collector = ProcessCollector()
    before, release = _read(collector), threading.Event()
    thread = threading.Thread(target=_work, args=(release, 0.3), name=name)
    thread.start()
    time.sleep(0.5)
    while counts and _read(collector) < before + 0.25:
        time.sleep(0.05)
    release.set()
    thread.join()
    spent_s = _read(collector) - before
    assert spent_s == pytest.approx(0.3 if counts else 0.0, abs=0.08)


def test_the_main_thread_does_not_count() -> None:
    collector = ProcessCollector()
    before, end = _read(collector), time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    assert _read(collector) - before < 0.05
