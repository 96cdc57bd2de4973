"""A cell says what the job does at its line: by the states and system calls of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pytest

from profkit.analysis import doing
from profkit.explain.between import is_evident
from profkit.explain.cells import Cell
from profkit.explain.evidence import Evidence
from profkit.explain.evidence_counters import Load
from profkit.explain.explained import Explained, explain
from profkit.hangs import processes
from profkit.report.ledger_document import explained
from profkit.trace import Trace
from tests.explain.conftest import MS, Make, Sample, plant, set_samples

Added: TypeAlias = Mapping[tuple[str, str | None], float]
"""The shares of what is added, by the state and the system call of the thread."""

ADDED_MS = 30.0
STEP, HOOK = 1, 3
"""Places of samples: the job's step, and the hook that was added to it."""


def _sample(trace: Trace, added: Added) -> Trace:
    """Sample the forward phase; its last ns are the hook's, in shares of `added`."""
    rows: list[Sample] = []
    for span in trace.spans.select(["phase", "start_ns", "end_ns"]).to_pylist():
        if span["phase"] == "forward":
            hook_ns = int(ADDED_MS * MS) if added else 0
            split = span["end_ns"] - hook_ns
            for at in np.arange(span["start_ns"] + MS // 2, split, 2 * MS):
                rows.append((int(at), STEP, "R", None))
            kinds, begin = list(added.items()), split
            for (state, call), share in kinds:
                end = begin + int(hook_ns * share)
                for at in np.arange(begin + MS // 2, end, 2 * MS):
                    rows.append((int(at), HOOK, state, call))
                begin = end
    return set_samples(trace, rows)


def _compare(make: Make, added: Added) -> Explained:
    target = make(1, seed=2, steps=60, longer=plant("forward", lambda step: ADDED_MS + 0 * step))
    return explain(_sample(make(1, steps=60), {}), _sample(target, added))


def _cells(view: Explained) -> list[Cell]:
    return [cell for cell in view.told_cells if cell.row == "forward"]


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({("S", "clock_nanosleep"): 1.0}, "sleeping"),
        ({("S", "recvfrom"): 1.0}, "reading a socket"),
        ({("S", "read"): 1.0}, "reading a pipe or socket"),
        ({("D", "read"): 1.0}, "reading a file"),
        ({("D", "fsync"): 0.6, ("D", "write"): 0.4}, "flushing and writing a file"),
        ({("S", "ioctl"): 1.0}, "asleep or blocked"),
        ({("S", "wait4"): 0.9, ("R", None): 0.1}, "waiting for a process"),
    ],
)  # fmt: skip
def test_a_line_that_blocks_says_in_which_call(added: Added, words: str, make: Make) -> None:
    view = _compare(make, added)
    (cell,) = _cells(view)
    assert (cell.how, cell.is_blocked, cell.where) == (words, True, "train.py:97 hook")
    assert f"in forward, {words} at train.py:97 hook, in every step" in explained(view).headline


@pytest.mark.parametrize(
    ("state", "call", "is_sure"),
    [("S", "clock_nanosleep", True), ("S", "recvfrom", True), ("D", "fsync", False)],
)
def test_other_jobs_may_make_the_disk_slow(
    state: str, call: str, is_sure: bool, make: Make
) -> None:
    (cell,) = _cells(_compare(make, {(state, call): 1.0}))
    assert is_evident(cell) is is_sure


def test_a_line_that_formats_computes(make: Make) -> None:
    (cell,) = _cells(_compare(make, {("R", None): 1.0}))
    assert (cell.how, cell.is_blocked) == ("computing", False)


@pytest.mark.parametrize(("cores", "is_blocked"), [(1.0, False), (0.6, True)])
def test_a_wait_for_a_thread_is_blocked_only_if_the_process_did_not_compute(
    cores: float, is_blocked: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread may be one of the library's, which computes."""
    original = vars(Evidence)["load"]
    load = Load(16, cores, 0.0, 1.0, 5.0)

    def figure(run: Evidence) -> Load | None:
        is_target = run.trace.stacks["call"].null_count < run.trace.stacks.num_rows
        return load if is_target else original.func(run)

    monkeypatch.setattr(Evidence, "load", property(figure))
    (cell,) = _cells(_compare(make, {("S", "futex"): 1.0}))
    assert (cell.how, cell.is_blocked) == ("waiting for another thread", is_blocked)


def test_a_line_that_waits_half_of_its_time_is_two_cells(make: Make) -> None:
    view = _compare(make, {("S", "recvfrom"): 0.5, ("R", None): 0.5})
    found = {cell.how: cell for cell in _cells(view)}
    assert set(found) == {"reading a socket", "computing"}
    assert [found[how].is_blocked for how in sorted(found)] == [False, True]
    for cell in found.values():
        assert cell.where == "train.py:97 hook"
        assert cell.ns * view.cells.step == pytest.approx(ADDED_MS * MS / 2, rel=0.2)
    assert sum(cell.exact for cell in view.cells.all) == view.ledger.total.exact


@pytest.mark.parametrize("added", [{("", None): 1.0}, {}])
def test_without_states_or_samples_the_processor_time_is_all_that_is_known(
    added: Added, make: Make
) -> None:
    cells = _cells(_compare(make, added))
    assert [cell.how for cell in cells] == ["computing"]


def test_a_busy_host_does_not_make_a_hook_wait_for_a_socket(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others use more cores, and what was added is a wait."""
    added: Added = {("S", "recvfrom"): 1.0}
    target = make(1, seed=2, steps=60, others=8.0,
                  longer=plant("forward", lambda step: ADDED_MS + 0 * step))  # fmt: skip
    original = vars(Evidence)["load"]
    busy = Load(16, 1.0, 0.0, 15.5, 900.0)
    monkeypatch.setattr(
        Evidence, "load", property(lambda run: busy if run.trace is target else original.func(run))
    )
    view = explain(_sample(make(1, steps=60), {}), _sample(target, added))
    assert [cause.kind for cause in view.causes] == ["slow_line"]
    assert "reading a socket at train.py:97 hook" in view.causes[0].evidence


def test_each_call_of_the_table_has_a_name_that_the_eye_gives() -> None:
    known = {*processes._X86_64.values(), *processes._ARM_64.values()}
    assert {*doing._BY_CALL, *sum(doing._ON_FILES.values(), ())} <= known
