"""Collectors cost the job nothing, whatever they do, and the report shows their results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.collectors import poller
from profkit.collectors.base import Reading
from profkit.errors import UsageError
from profkit.instrument.windows.windows import WindowPlan
from profkit.plugins import COLLECTORS, Seam
from profkit.rank import Rank
from profkit.run import choosing
from profkit.run.job import recorded
from profkit.run.run_folder import finish_run, make_run
from profkit.testing import report_step
from profkit.trace import RunManifest, Trace
from profkit.vocab import LOST_GPU

RELEASE = threading.Event()
PATIENCE_S = 120


class Fake:
    """A collector that does what it is told."""

    interval_s = 0.01

    def __init__(self, name: str, act: Callable[[], Iterable[Any]]) -> None:
        self.name = name
        self._act = act
        self.reads = 0

    def why_not(self) -> str:
        return ""

    def read(self) -> Iterable[Any]:
        self.reads += 1
        return self._act()


def _raise() -> Iterable[Any]:
    raise RuntimeError("the driver is gone")


def _hang() -> Iterable[Any]:
    RELEASE.wait(PATIENCE_S)
    return []


def _lose() -> Iterator[Reading]:
    yield Reading(LOST_GPU, 1.0, "cuda:0")


FAKES = {
    "raising": Fake("raising", _raise),
    "hanging": Fake("hanging", _hang),
    "rubbish": Fake("rubbish", lambda: ["nothing"]),
    "losing": Fake("losing", _lose),
    "sound": Fake("sound", lambda: [Reading("good_count", 1.0)]),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """A run with all of them: each is read, and read again if it does not hang."""
    monkeypatch.setattr(
        Seam, "load_all", lambda seam: (FAKES, {"missing": ImportError("no such library")})
    )
    monkeypatch.setattr(poller, "PATIENCE_NS", 20_000_000)
    monkeypatch.delenv(choosing.COLLECT, raising=False)
    RELEASE.clear()
    before = {name: fake.reads for name, fake in FAKES.items()}
    end = time.monotonic() + PATIENCE_S
    path = make_run(tmp_path, "run", RunManifest(workload="fake"))
    with recorded(path, Rank()) as job:
        for _ in range(20):
            report_step(job.tracker, 1)
            time.sleep(0.001)
        while any(
            fake.reads - before[name] < (1 if name == "hanging" else 2)
            for name, fake in FAKES.items()
        ):
            assert time.monotonic() < end, "they were not read"
            time.sleep(0.001)
        time.sleep(0.03)  # longer than the patience with the one that hangs
    RELEASE.set()
    finish_run(path)
    return Trace.open(path)


def test_the_report_tells_of_each_that_failed_and_no_step_is_missing(run: Trace) -> None:
    view = build_overview(run)
    quality = "; ".join(view.quality)
    for words in (
        "raising collector failed",
        "rubbish collector failed",
        "missing collector failed 1 time",
        "hanging collector did not answer for",
    ):
        assert words in quality
    assert "cuda:0 of rank 0 was lost while it trained" in quality
    assert "sound collector failed" not in quality
    assert view.steps_seen == 20
    assert "good_count" in set(run.samples["metric"].to_pylist())


@pytest.mark.parametrize("name", COLLECTORS.names())
def test_every_collector_can_be_chosen_alone(name: str) -> None:
    choice = choosing.Choice.parse(f" {name},", "", operators=False, lines="off")
    assert choice.collectors == (name,)
    assert choice.windows is None
    with_lines = choosing.Choice.parse(name, "", operators=False)
    assert with_lines.collectors == tuple(dict.fromkeys((name, choosing.SAMPLER)))


def test_kernels_among_the_names_opens_windows_now_and_then() -> None:
    choice = choosing.Choice.parse("host,kernels", "", operators=True, lines="off")
    plan = WindowPlan.parse("every:100")
    assert choice == choosing.Choice(("host",), plan, operators=True, lines=False)
    choice = choosing.Choice.parse("none", "3:5", operators=False, lines="off")
    assert choice == choosing.Choice((), WindowPlan.parse("3:5"), lines=False)


def test_without_a_word_all_are_chosen_and_windows_open_rarely() -> None:
    choice = choosing.Choice.parse("", "", operators=False, lines="off")
    assert choice == choosing.Choice(lines=False, rarely=True)


def test_an_unknown_collector_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'nvml'"):
        choosing.Choice.parse("nvm", "", operators=False)


def test_a_wrong_environment_costs_the_collectors_and_not_the_job() -> None:
    assert choosing.Choice.read({choosing.WINDOWS: "20"}) == choosing.Choice(())


def test_steps_of_a_window_are_measured_always() -> None:
    is_measured = choosing.Choice.parse("", "3:5", operators=False).is_measured(
        lambda step: step == 0
    )
    assert [step for step in range(8) if is_measured(step)] == [0, 3, 4]
