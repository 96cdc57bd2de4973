"""The process that samples all threads of a run on this host that can be read."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
import struct
import sys
import time
from pathlib import Path

from profkit.clock import Clock, now_ns
from profkit.errors import ProfkitError
from profkit.eye.announcing import ANSWER_SUFFIX, FOLDER, FUNCTIONS, SUFFIX
from profkit.eye.layout import UnknownPythonError
from profkit.eye.memory import ForbiddenError
from profkit.eye.sources import Sources
from profkit.eye.standing import StandingRanks
from profkit.eye.targets import NoWitnessError, RankRows, Said, Target, open_thread
from profkit.hangs.processes import is_visible
from profkit.trace.jsonfile import read_json
from profkit.vocab import EYE, rank_folder

LOOK_NS = 200_000_000
"""New processes are looked for this often; later, in a tenth of the time that has passed."""

STANDING_NS = 200_000_000
"""Ranks that stand still or crash are looked for this often."""

LONGEST_LOOK_NS = 1_000_000_000
FLUSH_NS = 2_000_000_000
"""Samples are on disk this long after they were taken. The eye survives the end of the job."""

COST_NS = 5_000_000_000
MOST_COST = 0.005
"""Share of a core for each rank above which samples are taken more rarely."""

SLOWEST = 20.0
GIVE_UP_NS = 5_000_000_000
"""A thread is looked for again for so long, if it cannot be read."""

NOBODY_S = 0.5
"""A pause while there is nothing to sample."""


class Eye:
    """Finds the threads, takes samples at random times, and writes them."""

    def __init__(self, run: Path, clock: Clock = now_ns) -> None:
        self._run, self._clock = run, clock
        self._began_ns = clock()
        self._seen: set[str] = set()
        self._failing_ns: dict[str, int] = {}
        self._targets: list[Target] = []
        self._rows: dict[int, RankRows] = {}
        self._standing = StandingRanks(run)
        self._sources = Sources(run / FOLDER / f"{platform.node()}-{os.getpid()}.{FUNCTIONS}")
        self._look_ns = self._standing_ns = self._flush_ns = self._cost_ns = 0
        self._start_s = self._used_s = 0.0
        self._slower = 1.0

    def watch(self, parent: int) -> None:
        """Sample until the parent has ended, and all threads too. `parent` is a pipe from it."""
        try:
            self._watch(parent)
        finally:  # whatever ends the eye, what it has written is whole
            self._flush()
            for target in self._targets:
                target.close()
            for rows in self._rows.values():
                rows.close()

    def _watch(self, parent: int) -> None:
        has_parent = True
        while has_parent or self._targets:
            wait_s = self._turn()
            if not has_parent:
                time.sleep(wait_s)
            elif select.select([parent], [], [], wait_s)[0]:
                has_parent = False
                self._close_ended()
                if os.read(parent, 1):  # the parent goes on without us
                    return

    def _turn(self) -> float:
        """Do what is due; return how long nothing is."""
        now = self._clock()
        if now >= self._look_ns:
            pause_ns = max(LOOK_NS, min(LONGEST_LOOK_NS, (now - self._began_ns) // 10))
            self._look_ns = now + pause_ns
            self._find()
        for target in self._targets:
            if target.due_ns <= self._clock():
                with contextlib.suppress(OSError, struct.error, ValueError, IndexError):
                    target.sample()  # the process may end while it is read
                target.plan(self._slower)
        if now >= self._standing_ns:
            self._standing_ns = now + STANDING_NS
            self._standing.look([each.thread for each in self._targets if each.is_worker])
        if self._clock() >= self._flush_ns:
            self._flush_ns = self._clock() + FLUSH_NS
            self._flush()
            self._close_ended()
            self._bound_cost()
        due = [self._look_ns, self._standing_ns, *(target.due_ns for target in self._targets)]
        return max(0.0, min(NOBODY_S, (min(due) - self._clock()) / 1e9))

    def _find(self) -> None:
        """Begin to sample the threads that have been announced since."""
        try:
            names = os.listdir(self._run / FOLDER)
        except OSError:
            return
        for name in sorted(names):
            if name.endswith(SUFFIX) and not name.startswith(".") and name not in self._seen:
                try:
                    self._begin(self._run / FOLDER / name)
                except FileNotFoundError:  # the rank of a worker has no folder yet
                    continue
                except UnknownPythonError:  # which threads there are may change meanwhile
                    continue
                except (ProfkitError, OSError, ValueError):
                    pass
                self._seen.add(name)

    def _begin(self, path: Path) -> None:
        content = read_json(path)
        if not is_visible(str(content.get("host")), str(content.get("pid_space"))):
            return
        said, why = Said.parse(content), ""
        try:
            if said.worker >= 0:
                (self._run / rank_folder(said.rank)).stat()
            target = Target(open_thread(said), self._rows_of(said.rank), self._sources.look)
        except UnknownPythonError as error:
            if not os.path.exists(f"/proc/{said.pid}/task/{said.native}"):
                return  # it has ended
            first_ns = self._failing_ns.setdefault(path.name, self._clock())
            is_forbidden = isinstance(error.__cause__, ForbiddenError)
            may_come = isinstance(error, NoWitnessError) or self._clock() < first_ns + GIVE_UP_NS
            if not is_forbidden and may_come:
                raise
            why = str(error)
        else:
            self._targets.append(target)
            self._share(said.rank)
            if len(self._targets) == 1:  # what came before was the start
                self._cost_ns = self._clock() + COST_NS
                self._start_s = self._used_s = time.process_time()
        answer = path.with_suffix(ANSWER_SUFFIX)
        answer.touch(0o600)
        answer.write_text(why)

    def _rows_of(self, rank: int) -> RankRows:
        if rank not in self._rows:
            self._rows[rank] = RankRows(self._run / rank_folder(rank) / EYE, rank)
        return self._rows[rank]

    def _share(self, rank: int) -> None:
        """Divide the rate for workers among those of a rank."""
        workers = [each for each in self._targets
                   if each.is_worker and each.thread.said.rank == rank]  # fmt: skip
        for target in workers:
            target.share = len(workers)

    def _flush(self) -> None:
        cpu_ns = int((time.process_time() - self._start_s) * 1e9 / max(1, len(self._rows)))
        for rows in self._rows.values():
            rows.flush(cpu_ns)
        with contextlib.suppress(OSError):  # a full disk costs the run these alone
            self._sources.flush()

    def _close_ended(self) -> None:
        ended = [target for target in self._targets if target.thread.has_ended]
        self._targets = [target for target in self._targets if target not in ended]
        for target in ended:
            target.close()
        for rank in {target.thread.said.rank for target in ended}:
            self._share(rank)

    def _bound_cost(self) -> None:
        """Sample more rarely if the eye uses more of a core than it may."""
        now = self._clock()
        ranks = len({target.thread.said.rank for target in self._targets})
        if now < self._cost_ns or not ranks:
            return
        used_s = time.process_time()
        share = (used_s - self._used_s) / ((now - self._cost_ns + COST_NS) / 1e9) / ranks
        self._slower = min(SLOWEST, max(1.0, self._slower * share / MOST_COST))
        self._used_s, self._cost_ns = used_s, now + COST_NS


def claim_host(run: Path) -> socket.socket | None:
    """Return what makes this the only eye of a run on this host; `None` if there is another."""
    status = run.stat()
    name = f"\0profkit-eye-{os.getuid()}-{platform.node()}-{status.st_dev}-{status.st_ino}"
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(name)
    except OSError:
        claim.close()
        return None
    return claim


def main(run: str) -> None:
    """Watch this run until the process that holds the other end of our input has ended."""
    parent = sys.stdin.fileno()
    while True:
        claim = claim_host(Path(run))
        if claim is not None:
            break
        if select.select([parent], [], [], 1.0)[0]:
            return
    with claim:
        Eye(Path(run)).watch(parent)
