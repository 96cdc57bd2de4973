"""Virtual processes: each has a clock of its own, and one of them runs at a time.

The rank whose clock is lowest runs. A rank that waits for a time that is not known yet lets the
others run, so that a collective ends when the last rank has reached it. Runs are deterministic: no
real clock and no race between threads decides anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tests.accelerator.moments import Moment

BEGIN_NS = 1_000_000_000_000
"""The virtual clocks' first reading."""

WRITER_INTERVAL_NS = 500_000_000
"""profkit's writer collects device times this often (`profkit.trace.writer.FLUSH_INTERVAL_S`)."""


class Deadlock(RuntimeError):  # noqa: N818  # the state has this name
    """Every rank waits for another one, as in a job whose ranks call different collectives."""


class Host:
    """The process of one rank: its clock, and the calls of its writer's thread.

    `host()` reads the clock. Only `work` and waiting advance it.
    """

    def __init__(self, number: int = 0, world: World | None = None) -> None:
        self.number = number
        self.ns = BEGIN_NS
        self.waits_for: Moment | None = None
        self.is_done = False
        self.error: BaseException | None = None
        self.on_tick: Callable[[], None] | None = None
        """The writer's work, called each half second of virtual time."""
        self.in_writer = False
        """True while profkit's writer runs: a thread of its own, as CUDA sees it."""
        self._writer_ns = 0
        self._next_tick_ns = BEGIN_NS
        self._world = world
        self.turn = threading.Semaphore(0)
        self.enter: Callable[[], None] = lambda: None
        self.leave: Callable[[], None] = lambda: None

    def __call__(self) -> int:
        return self._writer_ns if self.in_writer else self.ns

    def work(self, ns: int) -> None:
        """Spend time on the thread that calls: the loop's, or the writer's."""
        if self.in_writer:
            self._writer_ns += ns
            return
        self._reach(self.ns + ns)

    def wait_for(self, moment: Moment) -> None:
        """Block the loop until a moment, as a call does that synchronizes."""
        if moment.ns is None and self._world is not None:
            self.waits_for = moment
            self._world.run_others(self)
            self.waits_for = None
        if moment.ns is None:
            raise Deadlock(f"rank {self.number} waits for what no rank will do")
        self._reach(max(self.ns, moment.ns))

    def has_passed(self, moment: Moment) -> bool:
        """Return true if a moment is over on the clock of the calling thread."""
        if moment.ns is None and self._world is not None and not self.in_writer:
            self._world.run_others(self)
        return moment.ns is not None and moment.ns <= self()

    def _reach(self, ns: int) -> None:
        """Advance the clock, and let the writer do its work at the times in between."""
        while self.on_tick is not None and self._next_tick_ns <= ns:
            self._writer_ns = max(self.ns, self._next_tick_ns)
            self._next_tick_ns += WRITER_INTERVAL_NS
            self.run_writer(self.on_tick)
        self.ns = ns

    def run_writer(self, work: Callable[[], object]) -> None:
        """Run a function as the writer's thread, whose time is not the loop's."""
        self._writer_ns = max(self._writer_ns, self.ns)
        self.in_writer = True
        try:
            work()
        finally:
            self.in_writer = False


class World:
    """The ranks of a job, each on a thread; only the one whose turn it is runs."""

    def __init__(self, ranks: int = 1) -> None:
        self.hosts = [Host(number, self) for number in range(ranks)]
        self.current = self.hosts[0]
        self._is_broken = False

    def run(self, programs: Sequence[Callable[[Host], None]]) -> None:
        """Run one program per rank to its end; raise the first error of any.

        The threads have the name of a process's first one, which profkit records.
        """
        threads = []
        for host, program in zip(self.hosts, programs, strict=True):
            thread = threading.Thread(
                target=self._run_rank, args=(host, program), name="MainThread", daemon=True
            )
            threads.append(thread)
            thread.start()
        self.current = self.hosts[0]
        self.current.enter()
        self.current.turn.release()
        for thread in threads:
            thread.join()
        for host in self.hosts:
            if host.error is not None:
                raise host.error

    def run_others(self, host: Host) -> None:
        """Let other ranks run until this one's moment is known or they have passed its time."""
        following = self._choose()
        if following is None:
            raise Deadlock(f"rank {host.number} waits for what no rank will do")
        if following is not host:
            self._hand_over(host, following)
            self._take_turn(host)

    def _take_turn(self, host: Host) -> None:
        host.turn.acquire()
        if self._is_broken:
            raise Deadlock(f"rank {host.number} waits for what no rank will do")

    def _run_rank(self, host: Host, program: Callable[[Host], None]) -> None:
        try:
            self._take_turn(host)
            program(host)
        except BaseException as error:  # noqa: BLE001  # raised again by `run`
            host.error = error
        host.is_done = True
        following = self._choose()
        if following is not None:
            self._hand_over(host, following)
            return
        host.leave()
        self._is_broken = True
        for other in self.hosts:
            if not other.is_done:
                other.turn.release()

    def _choose(self) -> Host | None:
        """Return the rank with the lowest clock of those that can run."""
        able = []
        for host in self.hosts:
            is_free = host.waits_for is None or host.waits_for.ns is not None
            if not host.is_done and is_free:
                able.append(host)
        return min(able, key=lambda host: (host.ns, host is self.current), default=None)

    def _hand_over(self, host: Host, following: Host) -> None:
        host.leave()
        self.current = following
        following.enter()
        following.turn.release()
