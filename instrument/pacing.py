"""Slows everything but one phase of the job in blocks of steps (`experiments.py`).

After each part of the training thread comes a pause as long as the part. A part that waits for
somebody else, who is slowed as well, gets no pause for what the other one took: workers are slowed
by their rings, other ranks have blocks at the same steps. Only then does the job's pace tell what
the one phase would give, with everything that parts take from each other.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from profkit.clock import now_ns
from profkit.instrument.experiments import OBSERVED, ExperimentPlan, Place
from profkit.instrument.guard import guarded
from profkit.instrument.pauses import MORE, pause, pause_worker
from profkit.instrument.rows import Append, BatchTimes, SampleRow
from profkit.vocab import (
    EXPERIMENT,
    EXPERIMENT_CUT,
    EXPERIMENT_FACTOR,
    EXPERIMENTS,
    UNMEASURED,
    Phase,
)

if TYPE_CHECKING:
    from profkit.instrument.loading.ring import Ring
    from profkit.instrument.recorder import Recorder

MOST_WAITS = 64
"""Waits of one place in the step that are remembered."""

MOST_PAUSED = 3
"""All pauses of a step are at most so many usual steps long.

Workers pause for the batches of as many usual steps. A step that compiles or evaluates may take
minutes, and a collective has a time limit.
"""

_DATA, _OTHER = Phase.DATA.value, Phase.OTHER.value
_EXCHANGE = Phase.ALLREDUCE.value


def open_pacer(
    recorder: Recorder,
    samples: Append,
    plan: ExperimentPlan,
    thread: int,
    job: tuple[str, str, int],
) -> Pacer | None:
    """Slow blocks of a thread's steps from now on, if that slows what the job does.

    `job` is its framework, its device and its number of ranks.
    """
    framework, device, ranks = job
    why, absent = "", set[str]()
    if device != "cpu":
        why = "the host cannot slow the work of a device"
    elif framework == "paddle" and ranks > 1:  # its waits are known only after the backward
        why = "the exchange of several ranks of Paddle cannot be slowed"
    elif ranks == 1:
        absent.add(_EXCHANGE)
        if _EXCHANGE in plan.named:
            _note_unmeasured(samples, f"one rank has no exchange: {_EXCHANGE}")
    if why:
        _note_unmeasured(samples, why)
        return None
    if Phase.H2D.value not in plan.named:  # by name, even a copy from host to host is measured
        absent.add(Phase.H2D.value)
    pacer = Pacer(recorder, samples, plan.without(frozenset(absent)), thread)
    recorder.at_border = guarded("experiment", pacer.begin_step, None)
    return pacer


def _note_unmeasured(samples: Append, why: str) -> None:
    name = f"{UNMEASURED}experiments: {why}"
    samples(SampleRow(None, "profkit", name, now_ns(), 1.0))


def _median(numbers: Iterable[int]) -> int:
    known = sorted(numbers) or [0]
    return known[len(known) // 2]


class Pacer:
    """Notes where the training thread is in its step, and slows it in blocks.

    While a block comes near, `recorder.pacer` is this, and the recorder's hooks report every
    boundary at once. In all other steps it is `None`.
    """

    def __init__(
        self, recorder: Recorder, samples: Append, plan: ExperimentPlan, thread: int
    ) -> None:
        self._recorder = recorder
        self._samples = samples
        self.plan = plan
        self._thread = thread
        self._place: Place | None = None
        self._open: list[str] = []
        """The open phases of the training thread."""
        self._since = self._since_cpu = 0
        self._ahead = 0.0
        """How much longer the pauses so far took than they should; the next ones are shorter."""
        self._waits: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=MOST_WAITS))
        """The usual waits for batches and for ranks, by their place in the step."""
        self._count = 0
        """Waits for ranks in this step so far."""
        self._is_made_elsewhere = False
        """True if another thread or process makes the batches."""
        self._steps: deque[int] = deque(maxlen=OBSERVED)
        """How long the steps before the block took."""
        self._step = self._begun = 0
        self._left = 0.0
        """The longest pause that this step may still have."""
        self._is_cut = False
        """True if this step was too long for its pauses."""
        self._asks: deque[int] = deque(maxlen=OBSERVED)
        """How many batches the steps before the block took."""
        self._asked = self._most_asked = 0
        """Batches that this step has asked its loaders for, and the most it may while slowed."""
        self._slows_workers = False

    def begin_step(self, step: int) -> None:
        """Take the number of the step that begins; a block may begin or end with it."""
        place = self.plan.place_of(step)
        if self._place is not None:
            self._settle()  # the end of the last step, whose pause the next one gets
        now, slowed_before = now_ns(), False
        if self._place is not None:
            slowed_before = self._place.slowed
            if not slowed_before:
                self._steps.append(now - self._begun)
                self._asks.append(self._asked)
        self._place, self._step, self._begun = place, step, now
        self._count = self._asked = 0
        recorder = self._recorder
        if place is None:
            if recorder.pacer is not None:
                self.close()
            return
        if recorder.pacer is None:
            self._open.clear()
            self._ahead = 0.0
            recorder.pacer = self
        self._is_made_elsewhere |= bool(recorder.rings)
        if place.slowed:
            self._left = MOST_PAUSED * _median(self._steps)
            self._is_cut = False
            row = SampleRow(None, EXPERIMENTS, f"{EXPERIMENT}{place.phase}", now, float(step))
            self._samples(row)
            if not slowed_before and place.phase != _DATA:
                self._most_asked = MOST_PAUSED * max(1, _median(self._asks))
                self._pace_workers(slowed=True)
        self._start()

    def close(self) -> None:
        """Slow nothing from now on."""
        self._recorder.pacer = None
        self._place = None
        self._pace_workers(slowed=False)

    def _pace_workers(self, *, slowed: bool) -> None:
        self._slows_workers = slowed
        for ring in list(self._recorder.rings):
            ring.slowed = slowed

    def opened(self, ring: Ring) -> None:
        """Note that a loader has opened a ring, whose workers are as fast as the others."""
        ring.slowed = self._slows_workers

    def asked(self) -> None:
        """Note that a loader is asked for a batch. Workers of an evaluation are not slowed.

        Until it ends no step does, but it asks for more batches than steps do.
        """
        self._asked += 1
        if self._slows_workers and self._asked > self._most_asked:
            self._pace_workers(slowed=False)
            self._cut_block()

    # -- boundaries of the training thread ---------------------------------------------------------

    def enter(self, phase: str) -> None:
        """Note that a phase begins."""
        self._settle()
        self._open.append(phase)

    def leave(self) -> None:
        """Note that the innermost phase has ended."""
        self._settle()
        if self._open:
            self._open.pop()
        self._start()

    def cut(self) -> None:
        """Pause for what the phase has done so far, because something else may go on now."""
        if threading.get_ident() == self._thread:
            self._settle()

    def waited(self, start: int, end: int) -> None:
        """Note a wait for other ranks, which is over."""
        if threading.get_ident() != self._thread or self._place is None or end <= start:
            return
        self._pause_for(max(0, start - self._since), time.thread_time_ns() - self._since_cpu)
        self._count += 1
        usual, wait = self._usual(f"exchange {self._count}", end - start), end - start
        if self._is_slowed(_EXCHANGE):
            # A transfer takes longer; waiting for a rank that is slowed already does.
            self._pause(max(MORE * min(wait, usual), EXPERIMENT_FACTOR * usual - wait), 0.0)
        self._start()

    def made(self, times: BatchTimes) -> None:
        """Note that another thread of this process has made a batch; slow that thread."""
        self._is_made_elsewhere = True
        if self._slows_workers:
            pause_worker(times)

    def _start(self) -> None:
        self._since, self._since_cpu = now_ns(), time.thread_time_ns()

    def _settle(self) -> None:
        """Pause for the time since the last boundary, in the phase that is open."""
        took = now_ns() - self._since
        phase = self._open[-1] if self._open else ""
        if phase == _DATA and self._is_made_elsewhere:
            usual = self._usual(_DATA, took)
            if self._is_slowed(phase):  # who makes the batches is slowed, handing them over is not
                self._pause(EXPERIMENT_FACTOR * usual - took, 0.0)
        else:
            self._pause_for(took, time.thread_time_ns() - self._since_cpu)
        self._start()

    def _pause_for(self, took: int, busy: int) -> None:
        if self._is_slowed(self._open[-1] if self._open else ""):
            self._pause(MORE * took, MORE * busy)

    def _pause(self, ns: float, busy_ns: float) -> None:
        if ns > self._left:
            self._cut_block()
        ns = min(ns, self._left)
        if ns > 0:
            self._left -= ns
            self._ahead -= ns
            if self._ahead < 0:
                self._ahead = pause(-self._ahead, busy_ns)

    def _cut_block(self) -> None:
        """Note that this step got no pause for all that it did."""
        if not self._is_cut:
            self._is_cut = True
            row = SampleRow(None, EXPERIMENTS, EXPERIMENT_CUT, now_ns(), float(self._step))
            self._samples(row)

    def _is_slowed(self, phase: str) -> bool:
        place = self._place
        if place is None or _OTHER in self._open:  # an evaluation has phases inside of it
            return False
        return place.slowed and phase != place.phase

    def _usual(self, key: str, wait: int) -> int:
        """Return the lower quartile of the waits of one place; add this one if it is usual."""
        known = self._waits[key]
        if self._place is not None and not self._place.slowed:
            known.append(wait)
        if not known:
            return 0
        return sorted(known)[len(known) // 4]
