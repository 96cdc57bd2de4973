"""Watches the ranks from outside, and says why the job stands still while it does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from profkit.clock import now_ns, wall_ns
from profkit.hangs.classes import HangClass, Level
from profkit.hangs.evidence import HOST_SUFFIX, Evidence, read_evidence
from profkit.hangs.incidents import MOVED, SEEN, append_event
from profkit.hangs.processes import (
    ENDED_STATES,
    GONE,
    find_exit_code,
    is_visible,
    look_at,
    pid_space,
)
from profkit.hangs.status import (
    ENDED,
    FOLDER,
    LONGEST_TICK_S,
    RUNNING,
    STANDS_AFTER,
    TICKS_PER_LIMIT,
    TICKS_PER_WRITE,
    Status,
    plain_host,
    read_limit,
)
from profkit.hangs.verdict import Verdict, judge
from profkit.hangs.words import as_json, say_level, say_verdict
from profkit.instrument.guard import guarded
from profkit.progress import CLEAR_LINE
from profkit.run.settling import ENDS_APART_NS, Settling, is_recent
from profkit.text import duration
from profkit.trace.jsonfile import replace_json

NEVER_NS = 1 << 62
JUMP_NS = 500_000_000
"""A clock that is set by more than this has jumped: a status from before shows wrong intervals."""
MOST_SAID = 3
"""Verdicts about one standstill that are printed; later ones are only in the files."""

NCCLRAS_S = 5.0
MOST_NCCLRAS_BYTES = 1_000_000


@contextlib.contextmanager
def raise_alarms(run: Path) -> Iterator[HangAlarm]:
    """Watch the run while the block runs, and print verdicts to stderr, over a progress bar."""

    def say(line: str) -> None:
        start = CLEAR_LINE if sys.stderr.isatty() else ""
        print(f"{start}profkit: {line}", file=sys.stderr, flush=True)

    alarm = HangAlarm(run, read_limit(os.environ), say)
    alarm.start()
    try:
        yield alarm
    finally:
        alarm.stop()


class HangAlarm:
    """Reads the status files of the ranks, looks at their processes, and prints verdicts."""

    def __init__(self, run: Path, limit_s: float, say: Callable[[str], None]) -> None:
        self._run = run
        self._limit_s = limit_s
        self._say = say
        self._tick_s = min(LONGEST_TICK_S, limit_s / TICKS_PER_LIMIT) if limit_s else 1.0
        self._host = plain_host(platform.node())
        self._told_ns: int | None = None
        """When the job was first told to end, on the clock of the day."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._descriptors: dict[int, str] = {}
        """The process id of each open process descriptor."""
        self._known: set[str] = set()
        self._ends: dict[str, int] = {}
        self._states: dict[str, str] = {}
        self._exit_codes: dict[str, int] = {}
        self._offset_ns = wall_ns() - now_ns()
        self._quiet_until_ns = 0
        """After a jump of the clock, when all statuses are written again."""
        self._since_ns: int | None = None
        """When the step before the standstill ended, while the job stands still; monotonic."""
        self._standing: set[int] = set()
        """The ranks that stand still, or have stood still since then."""
        self._settling = Settling(limit_s)
        self._said: list[tuple[HangClass, Level, tuple[int, ...]]] = []
        self._seen_before: tuple[HangClass, Level, tuple[int, ...]] | None = None
        self._latest: Verdict | None = None
        self.unresolved = ""
        """The last verdict of an alarm after which the job has not moved."""

    def start(self) -> None:
        watch = guarded("hang alarm", self._watch, None)
        self._thread = threading.Thread(target=watch, name="profkit-hangs", daemon=True)
        self._thread.start()

    def stop(self, longest_s: float = LONGEST_TICK_S) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(longest_s)

    def note_told(self) -> None:
        """Note that the job is told to end; a rank that ends after that is not dead of itself."""
        if self._told_ns is None:
            self._told_ns = wall_ns()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # the ranks make the folder, too
            (self._run / FOLDER).mkdir(mode=0o700, exist_ok=True)
        poll = select.poll()
        look = guarded("hang alarm", self._look_once, None)
        due_ns = 0
        while not self._ended.is_set():
            if self._descriptors:
                for descriptor, _ in poll.poll(self._tick_s * 200):
                    self._note_end(descriptor, poll)
            else:
                self._ended.wait(self._tick_s / 5)
            if now_ns() >= due_ns:
                due_ns = now_ns() + int(self._tick_s * 1e9)
                look(poll)
        for descriptor, _ in poll.poll(0):
            self._note_end(descriptor, poll)
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _look_once(self, poll: select.poll) -> None:
        wall, now = wall_ns(), now_ns()
        evidence = read_evidence(self._run, wall, host=self._host)
        if abs(wall - now - self._offset_ns) > JUMP_NS:
            self._offset_ns = wall - now
            self._quiet_until_ns = now + int((TICKS_PER_WRITE + 1) * self._tick_s * 1e9)
        if evidence is not None:
            self._look(evidence, poll)
            if now >= self._quiet_until_ns:
                self._judge(evidence, wall, now)

    def _note_end(self, descriptor: int, poll: select.poll) -> None:
        name = self._descriptors.pop(descriptor)
        self._ends[name] = wall_ns()
        code = find_exit_code(int(name))  # until the launcher reaps it
        if code is not None:
            self._exit_codes[name] = code
        poll.unregister(descriptor)
        os.close(descriptor)
        self._write_states()

    def _look(self, evidence: Evidence, poll: select.poll) -> None:
        """Look at the ranks' processes on this host; write down those that stopped or ended."""
        before = dict(self._states)
        for status in evidence.ranks.values():
            if not is_visible(status.host, status.pid_space):
                continue
            name = str(status.pid)
            seen = look_at(status.pid)
            state = seen.state if seen.started_ticks == status.started_ticks else GONE
            self._states[name] = state  # gone, too, if its number was used again
            if name not in self._known and state not in ENDED_STATES:
                self._known.add(name)
                with contextlib.suppress(OSError, AttributeError):  # an old kernel has none
                    descriptor = os.pidfd_open(status.pid)
                    self._descriptors[descriptor] = name
                    poll.register(descriptor, select.POLLIN)
            elif state in ENDED_STATES and status.state == RUNNING:
                self._ends.setdefault(name, wall_ns())
        if self._states != before:
            self._write_states()

    def _write_states(self) -> None:
        content = {
            "written_ns": wall_ns(),
            "pid_space": pid_space(),
            "states": self._states,
            "ended_ns": self._ends,
            "exit_codes": self._exit_codes,
            "told_ns": self._told_ns,
            "excuses": {
                rank: dataclasses.asdict(excuse) for rank, excuse in self._settling.excuses.items()
            },
        }
        with contextlib.suppress(OSError):  # on a full disk, verdicts are still printed
            replace_json(self._run / FOLDER / f"{self._host}{HOST_SUFFIX}", content)

    def _judge(self, evidence: Evidence, wall: int, now: int) -> None:
        """Say why the job stands still, if it does; say that it moves again, if it does.

        `wall` is the time of day, as in the statuses. It may jump: `now` measures intervals.
        """
        running = [status for status in evidence.ranks.values() if status.state == RUNNING]
        left_ns = min((self._left_ns(status, wall) for status in running), default=NEVER_NS)
        if self._since_ns is not None and left_ns > 0:
            stood = [status for status in running if status.rank in self._standing] or running
            if stood:
                self._note_move(now - (wall - min(status.moved_ns for status in stood)), wall)
            elif all(status.state == ENDED for status in evidence.ranks.values()):
                self._note_move(now, wall)  # the last part was long, and a few steps followed
            return
        have_ended = all(map(self._is_over, evidence.ranks.values()))
        have_ended |= self._told_ns is not None and bool(self._ends)
        is_early = not any(self._is_looked_at(status, wall) for status in running)
        if is_early or not self._limit_s or have_ended:
            self._settling.start_over()
            return
        of_all_hosts = read_evidence(self._run, wall)
        verdict = judge(of_all_hosts or evidence, wall, self._host)
        if verdict is None:
            return
        if self._settling.note_excuses(verdict, now, wall):
            self._write_states()
        is_settled = self._settling.is_over(verdict, now, wall)
        key = (verdict.kind, verdict.level, verdict.ranks)
        # When the job moves again, the ranks' statuses are of different moments for one look.
        is_stable = self._since_ns is None or key == self._seen_before
        self._seen_before = key
        # Nobody waits, and the job computes or has not begun: nothing to say.
        is_idle = verdict.kind is HangClass.OWN_CODE and verdict.level is Level.NOTICE
        if left_ns > 0 or is_idle or not is_settled:
            return
        if self._since_ns is None:
            moved_ns = min(s.moved_ns for s in running if self._left_ns(s, wall) <= 0)
            self._since_ns = now - (wall - moved_ns)
            self._said.clear()
            self._standing.clear()
        self._standing.update(s.rank for s in running if self._left_ns(s, wall) <= 0)
        if key not in self._said and is_stable:
            self._said.append(key)
            self._report(verdict, wall)

    def _is_over(self, status: Status) -> bool:
        """Return true if a rank has ended. A busy machine may leave it no time to say so."""
        is_gone = str(status.pid) in self._ends and is_visible(status.host, status.pid_space)
        return is_gone or status.state == ENDED

    def _is_looked_at(self, status: Status, wall: int) -> bool:
        """Return true once a rank says what it does: it may be a part that takes long.

        A short limit leaves no time before that for a verdict to settle: then it is always true.
        """
        stood_ns = wall - status.moved_ns
        settle_ns = max(self._settling.usual_ns, ENDS_APART_NS) + int(2 * self._tick_s * 1e9)
        limit_ns = self._limit_ns(status)
        return stood_ns >= min(limit_ns * STANDS_AFTER, limit_ns - settle_ns)

    def _left_ns(self, status: Status, wall: int) -> int:
        """Return how long until the rank counts as standing still; 0 or less if it does.

        Since its last words, which a busy machine or disk may delay, it may have ended a step.
        """
        limit_ns = self._limit_ns(status)
        is_heard = is_recent(status, wall, limit_ns)
        known_ns = min(status.written_ns, wall) if is_heard else wall
        return limit_ns - (known_ns - status.moved_ns)

    def _limit_ns(self, status: Status) -> int:
        return max(status.limit_ns, int(self._limit_s * 1e9))

    def _report(self, verdict: Verdict, wall: int) -> None:
        """Write the verdict down, and print it unless there were several already."""
        self._latest = verdict
        if len(self._said) <= MOST_SAID:
            self._say(say_level(verdict))
            self._say(f"  {say_verdict(verdict)}")
            for line in verdict.missing:
                self._say(f"  not known: {line}")
        self._append({"event": SEEN, "time_ns": wall, "verdict": as_json(verdict)})
        if verdict.level is Level.ALARM:
            is_first, self.unresolved = not self.unresolved, say_verdict(verdict)
            if is_first:
                keep_ncclras(self._run / FOLDER / f"{self._host}.ncclras.txt")

    def _append(self, event: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # on a full disk, verdicts are still printed
            append_event(self._run, self._host, event)

    def _note_move(self, moved_ns: int, wall: int) -> None:
        stood_ns = max(0, moved_ns - (self._since_ns or moved_ns))
        self._since_ns, self.unresolved = None, ""
        self._append({"event": MOVED, "time_ns": wall, "stood_s": stood_ns / 1e9})
        if self._latest is not None and self._latest.level is Level.ALARM:
            self._say(f"the job moves again, after {duration(stood_ns)} without a step")


def keep_ncclras(path: Path) -> None:
    """Write the report of NCCL's own tool into this file, if this machine has the tool."""
    program = shutil.which("ncclras")
    if program is None:
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run([program, "-v"], capture_output=True, timeout=NCCLRAS_S, check=False)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(asked.stdout[:MOST_NCCLRAS_BYTES])
