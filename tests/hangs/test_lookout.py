"""The lookout of a rank: what its status file says while the loop moves, stands, and ends."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import process as multiprocessing_process
from pathlib import Path
from typing import Any

import pytest

from profkit.hangs.processes import ENDED_STATES
from profkit.hangs.status import (
    ENDED,
    FAILED,
    FOLDER,
    LONGEST_TICK_S,
    RUNNING,
    Frame,
    Status,
    read_statuses,
)
from profkit.instrument.collectives import CallLog, Message
from profkit.instrument.models import TrainedModels
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.sent import Group
from profkit.instrument.tracking.tracker import Tracker
from profkit.rank import Rank
from profkit.run.job import Job
from profkit.run.lookout.lookout import LONGEST_END_S, Lookout
from profkit.run.lookout.stacks import Stacks, look_at_workers, native_id

LIMIT_S = 1.2


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(Recorder(MemorySink()))


@pytest.fixture
def lookout(tmp_path: Path, tracker: Tracker) -> Iterator[Lookout]:
    made = Lookout(tmp_path, tracker, LIMIT_S)
    made.start(Rank(1, 2), lambda: None)
    yield made
    made.stop()


def read(run: Path) -> Status:
    (found,) = read_statuses(run / FOLDER)
    assert isinstance(found, Status)
    return found


def stand_in_read(descriptor: int) -> bytes:
    return os.read(descriptor, 1)


def test_a_loop_that_stands_still_shows_where(
    tmp_path: Path, tracker: Tracker, lookout: Lookout
) -> None:
    recorder = tracker.recorder
    log = CallLog(recorder, lambda row: None, defaultdict(itertools.count))
    group = Group("default", 2, "gloo", blocks=True)
    log.end(log.begin(group, "broadcast", Message(8, "float32")), waited=False)
    log.begin(group, "all_reduce", Message(400, "float32"))
    for _ in range(3):
        recorder.end_step(recorder.clock(), 4)
    reading, writing = os.pipe()
    seen: list[Status] = []

    def look_and_release() -> None:
        # Before the release: a look at a thread that has just been woken says that it runs.
        try:
            seen.append(read(tmp_path))
        finally:
            os.write(writing, b"x")

    threading.Timer(LIMIT_S, look_and_release).start()
    stand_in_read(reading)
    (status,) = seen
    assert (status.rank, status.world_size, status.pid) == (1, 2, os.getpid())
    assert (status.state, status.steps) == (RUNNING, 3)
    assert status.written_ns - status.moved_ns > LIMIT_S * 0.5e9
    assert "stand_in_read" in [frame.function for frame in status.stack]
    assert (status.thread_state, status.system_call, status.reads) == ("S", "read", "a pipe")
    assert status.calls_from == "profkit's own record"
    assert [(call.op, call.sequence, call.bytes, call.done) for call in status.calls] == [
        ("broadcast", 0, 8, True),
        ("all_reduce", 1, 400, False),
    ]


def test_a_rank_that_ends_says_which_calls_it_has_left(
    tmp_path: Path, tracker: Tracker, lookout: Lookout
) -> None:
    log = CallLog(tracker.recorder, lambda row: None, defaultdict(itertools.count))
    group = Group("default", 2, "gloo", blocks=True)
    log.end(log.begin(group, "barrier", Message(0, "")), waited=False)
    lookout.stop()
    status = read(tmp_path)
    assert status.state == ENDED
    assert [(call.op, call.done) for call in status.calls] == [("barrier", True)]


def test_a_loop_that_moves_shows_its_steps_and_no_stack(
    tmp_path: Path, tracker: Tracker, lookout: Lookout
) -> None:
    recorder = tracker.recorder
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        recorder.end_step(recorder.clock(), 4)
        time.sleep(0.01)
    status = read(tmp_path)
    assert status.steps > 10
    assert 0.005 < status.usual_step_s < 0.1
    assert status.stack == ()


def test_the_file_shows_no_place_that_the_loop_has_left(tmp_path: Path, tracker: Tracker) -> None:
    """The rank may be stopped before its next regular write."""
    not_due = 1
    lookout = Lookout(tmp_path, tracker, LIMIT_S / 100)
    (tmp_path / FOLDER).mkdir()
    while not list((tmp_path / FOLDER).glob("*.rank.json")):
        lookout._look(not_due)
    assert read(tmp_path).stack
    tracker.recorder.end_step(tracker.recorder.clock(), 4)
    lookout._look(not_due)
    assert (read(tmp_path).steps, read(tmp_path).stack) == (1, ())


def test_a_step_that_ends_during_a_look_is_noted(
    tmp_path: Path, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, seconds may pass within a look."""
    recorder = tracker.recorder
    lookout = Lookout(tmp_path, tracker, LIMIT_S / 100)
    (tmp_path / FOLDER).mkdir()

    def read_late(stacks: Stacks, thread: int) -> tuple[tuple[Frame, ...], tuple[Any, ...]]:
        recorder.end_step(recorder.clock(), 4)
        return (Frame("/home/me/train.py", "main", 1, "job"),), ()

    monkeypatch.setattr(Stacks, "read", read_late)
    while not list((tmp_path / FOLDER).glob("*.rank.json")):
        lookout._look(1)
    status = read(tmp_path)
    assert (status.steps, status.stack) == (1, ())
    assert status.stood_ns < 1_000_000


def test_a_rank_leaves_a_file_before_it_joins_the_others(tmp_path: Path, tracker: Tracker) -> None:
    """A rendezvous may hold the interpreter, so that no later look is possible."""
    lookout = Lookout(tmp_path, tracker, 600.0)
    lookout.start(Rank(1, 2), lambda: None)
    deadline = time.monotonic() + LONGEST_TICK_S / 2
    while time.monotonic() < deadline and not list((tmp_path / FOLDER).glob("*.rank.json")):
        time.sleep(0.01)
    assert (read(tmp_path).rank, read(tmp_path).steps) == (1, 0)
    lookout.stop()


def test_the_end_is_written(tmp_path: Path, tracker: Tracker, lookout: Lookout) -> None:
    tracker.recorder.end_step(tracker.recorder.clock(), 4)
    time.sleep(LIMIT_S / 10)
    lookout.stop()
    assert (read(tmp_path).state, read(tmp_path).steps) == (ENDED, 1)


def test_an_error_is_written_with_its_line(
    tmp_path: Path, tracker: Tracker, lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        stand_in_read(-1)
    except OSError as error:
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    time.sleep(LIMIT_S / 10)
    lookout.stop()
    status = read(tmp_path)
    assert status.state == FAILED
    assert "Bad file descriptor" in status.error
    assert status.stack[0].function == "stand_in_read"


def dive(depth: int) -> tuple[Frame, ...]:
    if depth:
        return dive(depth - 1)
    stack, _ = Stacks().read(threading.get_ident())
    return stack


def dive_and_fail(depth: int) -> None:
    if depth:
        dive_and_fail(depth - 1)
    raise ValueError("no label")


def test_a_deep_stack_keeps_both_of_its_ends() -> None:
    """Nested imports put hundreds of frames on top of the job's own."""
    stack = dive(200)
    functions = [frame.function for frame in stack]
    assert functions.index("dive") < 3
    assert "test_a_deep_stack_keeps_both_of_its_ends" in functions
    assert len(stack) < 100
    found: list[Frame] = []
    try:
        dive_and_fail(200)
    except ValueError as error:
        found = Stacks().of_error(error)
    assert found[-1].function == "test_a_deep_stack_keeps_both_of_its_ends"
    assert found[0].line == found[1].line + 1


def test_an_error_that_a_notebook_has_shown_did_not_end_the_rank(
    tmp_path: Path, tracker: Tracker, lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)  # as IPython sets it
    monkeypatch.setattr(sys, "last_exc", ValueError("of an earlier cell"), raising=False)
    monkeypatch.setattr(sys, "last_value", ValueError("of an earlier cell"), raising=False)
    tracker.recorder.end_step(tracker.recorder.clock(), 4)
    time.sleep(LIMIT_S / 10)
    lookout.stop()
    assert (read(tmp_path).state, read(tmp_path).error) == (ENDED, "")


def test_a_place_that_is_known_later_leaves_one_file(tmp_path: Path, tracker: Tracker) -> None:
    lookout = Lookout(tmp_path, tracker, LIMIT_S)
    lookout.start(Rank(0, 1), lambda: None)
    time.sleep(LIMIT_S / 10)
    lookout.start(Rank(3, 4), lambda: None)
    time.sleep(LIMIT_S / 3)
    lookout.stop()
    assert (read(tmp_path).rank, read(tmp_path).world_size) == (3, 4)


def test_a_clock_that_jumps_makes_no_standstill(
    tmp_path: Path, tracker: Tracker, lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker.recorder.end_step(tracker.recorder.clock(), 4)
    time.sleep(LIMIT_S / 6)
    monkeypatch.setattr(
        "profkit.run.lookout.lookout.wall_ns", lambda: time.time_ns() + 3600 * 10**9
    )
    time.sleep(LIMIT_S / 3)
    status = read(tmp_path)
    assert status.written_ns > time.time_ns() + 3000 * 10**9
    assert status.stood_ns < LIMIT_S * 1e9


def test_a_disk_that_is_full_for_a_while_does_not_end_the_lookout(
    tmp_path: Path, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fail(status: Status, folder: Path) -> None:
        tries.append(status)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")
        write(status, folder)

    write = Status.write
    monkeypatch.setattr(Status, "write", fail)
    lookout = Lookout(tmp_path, tracker, LIMIT_S)
    lookout.start(Rank(0, 1), lambda: None)
    time.sleep(LIMIT_S)
    assert len(tries) > 3
    assert read(tmp_path).state == RUNNING
    lookout.stop()


def test_a_disk_that_does_not_answer_does_not_hold_up_the_end(
    tmp_path: Path, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(Status, "write", lambda status, folder: answer.wait(60))
    lookout = Lookout(tmp_path, tracker, LIMIT_S)
    lookout.start(Rank(0, 1), lambda: None)
    time.sleep(LIMIT_S / 3)
    before = time.monotonic()
    lookout.stop()
    assert time.monotonic() - before < LONGEST_END_S + 1
    answer.set()


def test_an_interrupt_is_no_error_of_the_rank(
    tmp_path: Path, tracker: Tracker, lookout: Lookout
) -> None:
    tracker.recorder.end_step(tracker.recorder.clock(), 4)
    time.sleep(LIMIT_S)
    lookout.stop(KeyboardInterrupt())
    status = read(tmp_path)
    assert (status.state, status.error) == (RUNNING, "")
    assert status.stack


def test_a_process_that_is_not_the_rank_leaves_nothing(tmp_path: Path, tracker: Tracker) -> None:
    lookout = Lookout(tmp_path, tracker, LIMIT_S)
    lookout.start(Rank(0, 1), lambda: None)
    time.sleep(LIMIT_S / 3)
    lookout.give_up()
    lookout.stop()
    assert not list((tmp_path / FOLDER).iterdir())


def test_a_job_that_ended_before_its_files_were_open_is_not_running(tmp_path: Path) -> None:
    """The thread that opens the files starts the lookout, which may be after the job's end."""
    job = Job(tmp_path)
    job.finish()
    job._look_out(Rank(0, 1))
    assert read(tmp_path).state == ENDED


def test_a_forked_rank_looks_at_its_own_thread() -> None:
    """Python 3.11 keeps the parent's number of the main thread in a child."""
    child = os.fork()
    if not child:
        os._exit(0 if native_id(threading.get_ident()) == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_worker_that_failed_has_its_exit_code(*, is_reaped: bool) -> None:
    children: set[Any] = getattr(multiprocessing_process, "_children", set())
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    child.start()
    if is_reaped:
        child.join()
        children.add(child)  # as before the job's next look at it
    else:
        os.waitid(os.P_PID, child.pid or 0, os.WEXITED | os.WNOWAIT)
    try:
        (worker,) = (each for each in look_at_workers() if each.pid == child.pid)
        assert (worker.state in ENDED_STATES, worker.exit_code) == (True, 3)
    finally:
        children.discard(child)
        child.join()


@dataclass(eq=False)
class Module:
    """As torch's and Paddle's."""

    training: bool
    inner: tuple[Module, ...] = ()

    def children(self) -> Iterator[Module]:
        return iter(self.inner)


def test_a_wrapped_model_that_is_evaluated_does_not_train(tmp_path: Path, tracker: Tracker) -> None:
    """`model.module.eval()` changes the model alone, and DDP around it stays in training mode."""
    frozen = Module(training=False)
    net = Module(training=True, inner=(frozen,))
    wrapper, critic = Module(training=True, inner=(net,)), Module(training=False)
    vars(net)["children"] = []  # of the job's own
    models = TrainedModels("torch", lambda model: (), lambda model: (), lambda model: 0)
    models.add(wrapper)
    models.add(critic)
    tracker.models.append(models)
    lookout = Lookout(tmp_path, tracker, LIMIT_S)
    lookout._follow_steps()
    assert not lookout._evaluates  # nothing has trained yet
    tracker.recorder.end_step(tracker.recorder.clock(), 4)
    lookout._follow_steps()
    assert not lookout._evaluates
    net.training = False
    lookout._follow_steps()
    assert lookout._evaluates


def test_a_prompt_is_noted_while_the_loop_stands(
    tmp_path: Path, tracker: Tracker, lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lookout is not None
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    seen: list[Status] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(seen) < 2:
        time.sleep(LIMIT_S / 50)
        if list((tmp_path / FOLDER).glob("*.rank.json")) and read(tmp_path).is_interactive:
            seen.append(read(tmp_path))
            tracker.recorder.end_step(tracker.recorder.clock(), 4)
            while time.monotonic() < deadline and not read(tmp_path).steps:
                time.sleep(LIMIT_S / 50)
            seen.append(read(tmp_path))
    standing, moving = seen
    assert not standing.is_idle  # this test is code of the job
    assert (moving.steps, moving.is_interactive) == (1, False)
