"""A thread of each rank that notes when the loop stands still, and where.

It reads counters that the tracker keeps anyway, once a second. Only when no step has ended for a
while does it look at stacks, at `/proc` and at the framework's list of collectives. The training
thread does nothing for it.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.clock import now_ns, wall_ns
from profkit.eye.announcing import EyeFile, describe, why_not_read
from profkit.hangs.processes import ENDED_STATES, STOPPED, is_visible, look_at, pid_space
from profkit.hangs.status import (
    CRASH_SUFFIX,
    ENDED,
    FAILED,
    FOLDER,
    LONGEST_TICK_S,
    STACK_SUFFIX,
    SUFFIX,
    TICKS_PER_LIMIT,
    TICKS_PER_WRITE,
    Status,
    plain_host,
    read_limit,
    read_statuses,
)
from profkit.instrument.guard import guarded
from profkit.instrument.tracking.pending import EVALUATION
from profkit.instrument.tracking.states import CHECKPOINT
from profkit.rank import Rank
from profkit.run.lookout.calls import CallReader
from profkit.run.lookout.crash import catch_crashes, release_crashes
from profkit.run.lookout.device_look import DeviceLook
from profkit.run.lookout.stacks import Stacks, look_at_workers, native_id
from profkit.vocab import Phase

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Framework
    from profkit.instrument.tracking.tracker import Tracker

LONGEST_END_S = 2.0
"""The end of a rank waits for its last status for so long; a disk may not answer."""

MOST_DURATIONS = 31
LIVE_SHARE = 0.02
"""A thread that uses less of a processor is waiting."""

MOST_ERROR_CHARS = 200

MOST_WRAPPERS = 4
"""Modules around a model: those of DDP, of a compiler, of a library."""


class Lookout:
    """The thread, and the file that it keeps up to date."""

    def __init__(self, run: Path, loop: Tracker, limit_s: float | None = None) -> None:
        self._folder = run / FOLDER
        self._loop = loop
        self._limit_s = read_limit(os.environ) if limit_s is None else limit_s
        # A limit of 0 raises no alarm, but `profkit why` still has its files.
        self._tick_s = min(LONGEST_TICK_S, (self._limit_s or 30.0) / TICKS_PER_LIMIT)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stacks = Stacks()
        self._calls = CallReader()
        self._device = DeviceLook()
        self._durations: deque[float] = deque(maxlen=MOST_DURATIONS)
        self._most_training: dict[int, int] = {}
        """By model: so many of it and of what it wraps were in training mode after a step."""
        self._cpu: tuple[int, float] | None = None
        self._eye = EyeFile(run)
        self._announced: tuple[int, int] | None = None
        """The rank and the thread that the eye knows."""
        self._catches = False
        self._framework: Framework | None = None
        self._read_framework: Callable[[], Framework | None] = lambda: None
        self._moved_ns = self._alive_ns = now_ns()
        self._error: BaseException | None = None
        self._leaves_nothing = self._evaluates = False
        started = look_at(os.getpid()).started_ticks
        self._status = Status(
            0, 1, platform.node(), os.getpid(), started_ticks=started, pid_space=pid_space()
        )

    def start(self, rank: Rank, framework: Callable[[], Framework | None]) -> None:
        """Follow this process as this rank; once it trains, the rank may change."""
        self._read_framework = framework
        if not self._lock.acquire(timeout=LONGEST_TICK_S):
            return  # the disk does not answer
        try:
            before = self._status.file_name
            self._moved_ns = self._alive_ns = now_ns()
            self._status = dataclasses.replace(
                self._status,
                rank=rank.number,
                world_size=rank.world_size,
                limit_s=self._limit_s or self._status.limit_s,
                store=f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}",
            )
            if self._thread is not None and before != self._status.file_name:
                (self._folder / before).unlink(missing_ok=True)
                self._catches = False  # the file has another name now
        finally:
            self._lock.release()
        if self._thread is None:
            thread = threading.Thread(
                target=guarded("lookout", self._watch, None), name="profkit-lookout", daemon=True
            )
            thread.start()
            self._thread = thread  # now it can be joined: the job may end on another thread

    @property
    def thread(self) -> int:
        """The number of the thread, which stays in `_watch`; 0 if there is none."""
        return (self._thread and self._thread.ident) or 0

    def stop(self, error: BaseException | None = None, longest_s: float = LONGEST_END_S) -> None:
        """Have the thread write how the rank ended, and wait for that for a moment.

        The error is the one that ended it, if the caller knows it. An interrupt is no error of the
        rank: as after a SIGKILL, the file keeps what was seen before.
        """
        # A notebook and a prompt show an error and go on, so that the last one ended nothing.
        if error is None and not hasattr(sys, "ps1"):
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self._error = error
        self._ended.set()
        if self._thread is not None:
            self._thread.join(longest_s)

    def give_up(self) -> None:
        """Leave no status: another process is this rank."""
        self._leaves_nothing = True
        self.stop()

    def _path(self, suffix: str) -> Path:
        return self._folder / self._status.file_name.replace(SUFFIX, suffix)

    def _watch(self) -> None:
        for folder in (self._folder.parent, self._folder):  # the run's may not be made yet
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A disk that is full for a while must not end the lookout.
        look = guarded("lookout", self._look, None)
        number = 0
        # The first look is at once: the job may hold the interpreter in its rendezvous.
        while not self._is_worker():
            look(number)
            number += 1
            if self._ended.wait(self._tick_s):
                break
        else:
            return
        guarded("fault handler", release_crashes, None)()
        with self._lock:
            if self._leaves_nothing:
                (self._folder / self._status.file_name).unlink(missing_ok=True)
            elif self._error is None or isinstance(self._error, Exception):
                self._write_end(self._error)

    def _look(self, number: int) -> None:
        is_due = number % TICKS_PER_WRITE == 0
        with self._lock:
            self._announce()
            if self._loop.recorder.step_now and not self._catches:
                self._catches = True
                if why_not_read(self._folder.parent) is None:
                    guarded("fault handler", catch_crashes, None)(self._path(CRASH_SUFFIX))
            had_place = bool(self._status.thread_state)
            stands = self._follow_steps()
            if stands:
                self._look_closely(with_calls=is_due)
            else:
                self._eye.forget()
            if stands or is_due or (had_place and not self._status.thread_state):
                self._status.write(self._folder)

    def _announce(self) -> None:
        """Let the eye read this process; it needs the status for that."""
        thread, rank = self._thread_of_loop(), self._status.rank
        if (rank, thread) != self._announced:
            self._announced = rank, thread
            native, own = native_id(thread), threading.get_ident()
            content = guarded("lines", describe, {})(rank, thread, native=native, witness=own)
            self._status = dataclasses.replace(self._status, announced=content)

    def _thread_of_loop(self) -> int:
        return self._loop.thread or threading.main_thread().ident or 0

    def _is_worker(self) -> bool:
        """Return true in a loader's worker that has inherited the rank's environment."""
        for name in ("torch.utils.data._utils.worker", "paddle.io.dataloader.worker"):
            if getattr(sys.modules.get(name), "_worker_info", None) is not None:
                return True
        return False

    def _follow_steps(self) -> bool:
        """Note the steps that have ended; return true if none has for a while."""
        recorder, status, now = self._loop.recorder, self._status, now_ns()
        steps = recorder.step_now
        models = [model for known in self._loop.models for model in known.alive]
        count = guarded("modes of models", count_training, 0)
        training = {id(model): count(model) for model in models}
        if steps != status.steps:
            self._durations.append(recorder.last_step_ns / 1e9)
            for model, modules in training.items():
                self._most_training[model] = max(modules, self._most_training.get(model, 0))
            self._cpu = None
            self._device.forget()
            self._moved_ns = self._alive_ns = now
            status = dataclasses.replace(
                status,
                steps=steps,
                usual_step_s=sorted(self._durations)[len(self._durations) // 2],
                evaluates=False,
                loaders_over=False,
                is_interactive=False,
                region="",
                thread_state="",
                stack=(),
                other_stacks=(),
                calls=(),
                calls_from="",
                workers=(),
                peers={},
                device_behind_s=None,
            )
        self._status = self._dated(status)
        trained = [model for model in training if self._most_training.get(model)]
        fewer = [model for model in trained if training[model] < self._most_training[model]]
        self._evaluates = bool(trained) and fewer == trained
        return self._status.stands_still

    def _dated(self, status: Status) -> Status:
        """Return the status as of now. The clock of the day may jump, and no interval uses it."""
        wall, now = wall_ns(), now_ns()
        return dataclasses.replace(
            status,
            written_ns=wall,
            moved_ns=wall - (now - self._moved_ns),
            alive_ns=wall - (now - self._alive_ns),
        )

    def _look_closely(self, *, with_calls: bool) -> None:
        """Note the stack, the state of the thread, collectives, workers, and the other ranks."""
        loop, status = self._loop, self._status
        thread = self._thread_of_loop()
        is_read = self._eye.reads(self._path(STACK_SUFFIX))
        stack, others = ((), ()) if is_read else self._stacks.read(thread)
        look = look_at(os.getpid(), native_id(thread))
        now = now_ns()
        share = None
        if self._cpu is not None and now > self._cpu[0]:
            share = max(0.0, (look.cpu_s - self._cpu[1]) / ((now - self._cpu[0]) / 1e9))
        self._cpu = (now, look.cpu_s)
        has_moved = stack != status.stack
        if has_moved:
            self._device.forget()
        behind_s = self._device.behind_s(loop.recorder.device)
        # A thread that waits for the device uses the processor, and does nothing.
        if has_moved or ((share or 0.0) > LIVE_SHARE and not behind_s):
            self._alive_ns = now
        framework = self._read_framework()
        phase, region = loop.standing
        status = dataclasses.replace(
            status,
            framework=framework.name if framework else "",
            evaluates=self._evaluates or (phase == Phase.OTHER.value and region == EVALUATION),
            loaders_over=loop.loaders_over,
            is_interactive=hasattr(sys, "ps1"),
            region=region if region == CHECKPOINT else "",
            thread_state=look.state,
            system_call=look.system_call,
            reads=self._stacks.shown(look.reads),
            kernel_wait=look.kernel_wait,
            cpu_share=share,
            stack=stack,
            other_stacks=others,
            workers=look_at_workers(),
            device_behind_s=behind_s,
            peers=look_at_peers(self._folder, status),
        )
        self._status = self._dated(status)
        if with_calls or has_moved or not status.calls_from:
            self._read_calls(framework)  # of the same moment as the stack
        if loop.recorder.step_now != status.steps:  # a step has ended since the look began
            self._follow_steps()

    def _read_calls(self, framework: Framework | None) -> None:
        calls, source = self._calls.read(framework, self._loop.recorder)
        self._status = dataclasses.replace(self._status, calls=calls, calls_from=source)

    def _write_end(self, error: Exception | None) -> None:
        said = ""
        if error is not None:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_ERROR_CHARS]
            stack = tuple(self._stacks.of_error(error))
            self._status = dataclasses.replace(self._status, stack=stack)
        self._status = dataclasses.replace(
            self._dated(self._status),
            state=FAILED if said else ENDED,
            error=said,
            steps=self._loop.recorder.step_now,
        )
        self._status.write(self._folder)
        if error is not None or self._status.world_size > 1:
            self._read_calls(self._read_framework())  # others may be in one that this rank left
            self._status.write(self._folder)


def count_training(model: Any) -> int:
    """Return how many of a model and of what it wraps are in training mode.

    `model.module.eval()` changes the model alone, and DDP's module around it stays in that mode.
    """
    count = int(bool(getattr(model, "training", False)))
    for _ in range(MOST_WRAPPERS):
        # By the class, because a job may give this name to a list of its own.
        inner = list(getattr(type(model), "children", lambda _: ())(model))
        if len(inner) != 1:
            break
        model = inner[0]
        count += bool(getattr(model, "training", False))
    return count


def look_at_peers(folder: Path, own: Status) -> dict[str, str]:
    """Return the states of the other ranks on this host whose processes stopped or ended."""
    states = {}
    for other in read_statuses(folder, plain_host(own.host)):
        if not isinstance(other, Status) or not is_visible(other.host, other.pid_space):
            continue
        look = look_at(other.pid)
        is_same = look.started_ticks == other.started_ticks
        state = look.state if is_same else ""
        if state in STOPPED or state in ENDED_STATES:
            states[str(other.pid)] = state
    return states
