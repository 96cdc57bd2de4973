"""The tracker's state tables are complete, and it fits the hooks' interface."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking import boundaries
from profkit.instrument.tracking.states import (
    CHECKPOINT,
    IGNORED_INSIDE,
    STEP_MODES,
    TRANSITIONS,
    LoopEvent,
    Progress,
    StepMode,
    describe,
)
from profkit.instrument.tracking.threads import ThreadFilter
from profkit.instrument.tracking.tracker import Tracker
from profkit.vocab import PHASES, Phase

MODE_EVENTS = {event for _, event in STEP_MODES}
PROGRESS_EVENTS = {event for _, event in TRANSITIONS}


def test_every_event_has_a_transition_from_every_state() -> None:
    assert TRANSITIONS.keys() == {(state, event) for state in Progress for event in PROGRESS_EVENTS}
    assert set(LoopEvent) == MODE_EVENTS | PROGRESS_EVENTS


def test_every_state_is_reached_from_the_first() -> None:
    progress, modes = {Progress.IDLE}, {StepMode.INFERRED}
    for _ in [*Progress, *StepMode]:
        progress |= {to for (state, _), (_, to) in TRANSITIONS.items() if state in progress}
        modes |= {to for (mode, _), to in STEP_MODES.items() if mode in modes}
    assert (progress, modes) == (set(Progress), set(StepMode))


def test_a_reset_leads_to_the_first_state() -> None:
    assert {TRANSITIONS[state, LoopEvent.RESET].following for state in Progress} == {Progress.IDLE}
    modes = {STEP_MODES.get((mode, LoopEvent.RESET), mode) for mode in StepMode}
    assert modes == {StepMode.INFERRED}


def test_the_tables_can_be_printed() -> None:
    lines = describe().splitlines()
    assert len(lines) == len(TRANSITIONS) + len(STEP_MODES)
    assert any(line.split() == ["IDLE", "ACTIVITY", "BEGIN_LOOP", "UNDECIDED"] for line in lines)


def test_every_report_says_inside_which_phases_it_is_ignored() -> None:
    inner = {Phase.ALLREDUCE.value, Phase.COMPILE.value}  # inside others, and no report of hooks
    assert IGNORED_INSIDE.keys() | inner == {*PHASES, CHECKPOINT}
    assert all(Phase.OTHER.value in phases for phases in IGNORED_INSIDE.values())


def test_the_tracker_has_the_reports_that_notes_forward_to_it() -> None:
    """Notes and boundaries name them without a type, as `_notes.c` does."""
    folder = Path(boundaries.__file__).parent
    source = (folder / "notes.py").read_text() + (folder / "boundaries.py").read_text()
    told = set(re.findall(r"tracker\.(\w+)\(", source))
    assert told >= {"begin_data", "end_data", "begin_copy", "keep_rows", "take_plain", "catch_up"}
    tracker = Tracker(Recorder(MemorySink()))
    assert all(callable(getattr(tracker, name)) for name in told)
    assert Seams(tracker, list[object]().append).begin_checkpoint() is None


def _in_thread(filter_: ThreadFilter, *, trains: bool = False) -> bool:
    accepted = []

    def report() -> None:
        if trains:
            filter_.decide()
        accepted.append(filter_.accepts())

    thread = threading.Thread(target=report)
    thread.start()
    thread.join()
    return accepted[0]


def test_the_first_thread_is_followed_until_the_main_one_reports() -> None:
    changes: list[int | None] = []
    filter_ = ThreadFilter(lambda: changes.append(filter_.thread))
    assert _in_thread(filter_)
    assert filter_.accepts()
    assert not _in_thread(filter_)
    assert changes[-1] == threading.get_ident()
    assert len(changes) == 2


def test_once_a_thread_has_trained_no_other_is_followed() -> None:
    filter_ = ThreadFilter(lambda: None)
    assert filter_.accepts()
    assert _in_thread(filter_, trains=True)
    assert not filter_.accepts()
    assert not filter_.decide()
