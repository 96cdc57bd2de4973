"""Watches from `profkit run` and `profkit trace` if the job stands still, and says why while it does."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from profkit.clock import wall_ns
from profkit.hangs.evidence import HOST_SUFFIX, Evidence, read_evidence
from profkit.hangs.incidents import MOVED, SEEN, append_event
from profkit.hangs.processes import ENDED_STATES, look_at
from profkit.hangs.status import FOLDER, RUNNING, Status, plain_host, read_limit
from profkit.hangs.verdict import HangClass, Level, Verdict, judge
from profkit.hangs.words import as_json, say_level, say_verdict
from profkit.progress import CLEAR_LINE
from profkit.text import duration
from profkit.trace.jsonfile import replace_json

LONGEST_TICK_S = 1.0
TICKS_PER_LIMIT = 30
NCCLRAS_TIMEOUT_S = 5.0
MOST_NCCLRAS_BYTES = 1_000_000
SETTLE_PART = 0.25
LONGEST_SETTLE_S = 10.0
"""An alarm is raised when its reason has been seen for a part of the limit, or for so long."""
NEVER_NS = 1 << 62
MOST_SAID = 3
"""Verdicts about one standstill that are printed; later ones are only in the files."""


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
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._descriptors: dict[int, tuple[int, str]] = {}
        """For each open process descriptor, the process id and the start of the process."""
        self._known: set[str] = set()
        self._ends: dict[str, int] = {}
        self._states: dict[str, str] = {}
        self._since_ns: int | None = None
        """When the step before the standstill ended, while the job stands still."""
        self._settle_ns = int(min(LONGEST_SETTLE_S, limit_s * SETTLE_PART) * 1e9)
        self._settling: tuple[str, int] | None = None
        """What kind of standstill was seen, and since when it has not changed."""
        self._said: list[tuple[HangClass, Level, tuple[int, ...]]] = []
        self._latest: Verdict | None = None
        self.unresolved = ""
        """The last verdict of an alarm after which the job has not moved."""

    def start(self) -> None:
        (self._run / FOLDER).mkdir(mode=0o700, exist_ok=True)
        self._thread = threading.Thread(target=self._watch, name="profkit-hangs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LONGEST_TICK_S)

    def _watch(self) -> None:
        poll = select.poll()
        due_ns = 0
        while not self._ended.is_set():
            if self._descriptors:
                for descriptor, _ in poll.poll(self._tick_s * 200):
                    self._note_end(descriptor, poll)
            else:
                self._ended.wait(self._tick_s / 5)
            now = wall_ns()
            if now < due_ns:
                continue
            due_ns = now + int(self._tick_s * 1e9)
            with contextlib.suppress(OSError):  # a full disk ends no watch
                evidence = read_evidence(self._run, now, host=self._host)
                if evidence is not None:
                    self._look(evidence, poll)
                    self._judge(evidence, now)

    def _note_end(self, descriptor: int, poll: select.poll) -> None:
        pid, _ = self._descriptors.pop(descriptor)
        poll.unregister(descriptor)
        os.close(descriptor)
        self._ends[str(pid)] = wall_ns()
        with contextlib.suppress(OSError):
            self._write_states()

    def _look(self, evidence: Evidence, poll: select.poll) -> None:
        """Look at the ranks' processes on this host; write down those that stopped or ended."""
        before = dict(self._states)
        for status in evidence.ranks.values():
            if plain_host(status.host) != self._host:
                continue
            name = str(status.pid)
            look = look_at(status.pid)
            is_same = look.started_ticks == status.started_ticks
            state = look.state if is_same else ""
            self._states[name] = state
            if name not in self._known and state not in ENDED_STATES:
                self._known.add(name)
                with contextlib.suppress(OSError, AttributeError):  # an old kernel has none
                    descriptor = os.pidfd_open(status.pid)
                    poll.register(descriptor, select.POLLIN)
                    self._descriptors[descriptor] = (status.pid, name)
            elif state in ENDED_STATES and status.state == RUNNING:
                self._ends.setdefault(name, wall_ns())
        if self._states != before:
            self._write_states()

    def _write_states(self) -> None:
        content = {"written_ns": wall_ns(), "states": self._states, "ended_ns": self._ends}
        replace_json(self._run / FOLDER / f"{self._host}{HOST_SUFFIX}", content)

    def _judge(self, evidence: Evidence, now: int) -> None:
        """Say why the job stands still, if it does; say that it moves again, if it does."""
        running = [status for status in evidence.ranks.values() if status.state == RUNNING]
        left_ns = min((self._left_ns(status, now) for status in running), default=NEVER_NS)
        if self._since_ns is not None and left_ns > 0:
            if running:
                self._note_move(evidence, now)
            return
        early_ns = self._settle_ns + int(2 * self._tick_s * 1e9)
        if left_ns > early_ns or not self._limit_s or len(self._ends) == len(evidence.ranks):
            self._settling = None
            return
        of_all_hosts = read_evidence(self._run, now)
        verdict = judge(of_all_hosts or evidence, now)
        if verdict is None:
            return
        is_settled = self._has_settled(verdict, now)
        # Nobody waits, and the job computes or has not begun: nothing to say.
        is_idle = verdict.kind is HangClass.OWN_CODE and verdict.level is Level.NOTICE
        if left_ns > 0 or is_idle or not is_settled:
            return
        if self._since_ns is None:
            self._since_ns = min(s.moved_ns for s in running if self._left_ns(s, now) <= 0)
            self._said.clear()
        key = (verdict.kind, verdict.level, verdict.ranks)
        if key not in self._said:
            self._said.append(key)
            self._report(verdict, now)

    def _left_ns(self, status: Status, now: int) -> int:
        """Return how long until the rank counts as standing still; 0 or less if it does."""
        limit_ns = max(status.limit_ns, int(self._limit_s * 1e9))
        return limit_ns - (now - status.moved_ns)

    def _has_settled(self, verdict: Verdict, now: int) -> bool:
        """Return false for an alarm that may be over at the next look.

        When an evaluation on one rank ends, all ranks are in a barrier for a moment. At that
        moment the job has stood for long, and nobody is in a part that may take long.
        """
        if verdict.level is Level.NOTICE:
            kind = Level.NOTICE.value if verdict.kind is not HangClass.OWN_CODE else ""
        elif verdict.kind in {HangClass.NONE_LEFT, HangClass.MISMATCH}:
            kind = verdict.kind.value
        else:
            kind = ""  # what a slow rank does may change from look to look
        if self._settling is None or kind != self._settling[0]:
            self._settling = (kind, now)
        is_notice = verdict.level is Level.NOTICE
        return is_notice or now - self._settling[1] >= self._settle_ns

    def _report(self, verdict: Verdict, now: int) -> None:
        """Write the verdict down, and print it unless there were several already."""
        self._latest = verdict
        event = {"event": SEEN, "time_ns": now, "verdict": as_json(verdict)}
        append_event(self._run, self._host, event)
        if len(self._said) <= MOST_SAID:
            self._say(say_level(verdict))
            self._say(f"  {say_verdict(verdict)}")
            for line in verdict.missing:
                self._say(f"  not known: {line}")
        if verdict.level is Level.ALARM:
            if not self.unresolved:
                self._ask_ncclras()
            self.unresolved = say_verdict(verdict)

    def _ask_ncclras(self) -> None:
        """Keep what NCCL's own tool says of the job, if this machine has the tool."""
        program = shutil.which("ncclras")
        if program is None:
            return
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = subprocess.run(
                [program, "-v"], capture_output=True, timeout=NCCLRAS_TIMEOUT_S, check=False
            )
            path = self._run / FOLDER / f"{self._host}.ncclras.txt"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(asked.stdout[:MOST_NCCLRAS_BYTES])

    def _note_move(self, evidence: Evidence, now: int) -> None:
        since_ns, self._since_ns = self._since_ns or now, None
        moved_ns = min(status.moved_ns for status in evidence.ranks.values())
        event = {"event": MOVED, "time_ns": now, "stood_s": (moved_ns - since_ns) / 1e9}
        append_event(self._run, self._host, event)
        self.unresolved = ""
        if self._latest is not None and self._latest.level is Level.ALARM:
            self._say(f"the job moves again, after {duration(moved_ns - since_ns)} without a step")
