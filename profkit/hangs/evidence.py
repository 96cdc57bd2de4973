"""Collect what the files of a run say about its ranks, without a look at processes."""

from __future__ import annotations

import dataclasses
import platform
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from profkit.errors import UnreadableError
from profkit.hangs.processes import ENDED_STATES, GONE, STOPPED
from profkit.hangs.status import (
    CRASH_SUFFIX,
    ENDED,
    FAILED,
    FOLDER,
    RUNNING,
    STACK_SUFFIX,
    SUFFIX,
    WORKER_SUFFIX,
    Frame,
    Status,
    Worker,
    name_own,
    plain_host,
    read_statuses,
)
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json

HOST_SUFFIX = ".host.json"
"""Suffix of the file in which `profkit run` writes what it sees of the ranks on its host."""

HELD_NS = 2_000_000_000
"""The eye saw a rank stand still for so long after the rank's own last words."""

SAME_TIME_NS = 60_000_000_000
"""Statuses of one rank that are this close belong to processes that ran at the same time."""

TOGETHER_NS = 50_000_000
"""Processes that end this close to each other were ended together."""

CUT_OFF = re.compile(r"connection (was )?(reset|closed|aborted)|broken pipe", re.IGNORECASE)
"""The error of a rank whose connection to another one was cut, as by the end of that one."""

FORCED = {-signal.SIGTERM: 2, -signal.SIGKILL: 1}
"""A launcher ends ranks with these signals, and begins with SIGTERM."""


@dataclass(frozen=True)
class Evidence:
    """The ranks of a job that left a status, and what else is known of their processes."""

    ranks: Mapping[int, Status]
    world_size: int
    states: Mapping[int, str] = field(default_factory=dict)
    """States of the ranks' processes, seen from outside: stopped or ended."""
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    """Exit codes of ranks, if they are not 0 and were seen; negative for a signal."""
    silent: frozenset[int] = frozenset()
    """Ranks that have written nothing while others did."""
    native: frozenset[int] = frozenset()
    """Ranks that the eye saw stand still, while no Python code could run to say so."""
    crashed: frozenset[int] = frozenset()
    """Ranks whose stack was read as a signal ended them."""
    damaged: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    newest_ns: int = 0
    """The time of the last words of any rank, or of the look at a job that runs."""

    @property
    def unheard(self) -> frozenset[int]:
        """The silent ranks of which no stack shows what holds them."""
        return self.silent.difference(self.native)

    def idle_s(self, rank: int) -> float:
        """Return for how long a rank's training thread has shown no life.

        Before the first step, native code may load data for long while it holds the interpreter.
        """
        status = self.ranks[rank]
        seen_ns = status.written_ns
        if rank in self.unheard and status.steps:
            seen_ns = max(seen_ns, self.newest_ns)
        return max(0, seen_ns - status.alive_ns) / 1e9

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that left no status."""
        return tuple(sorted(set(range(self.world_size)).difference(self.ranks)))

    def is_stopped(self, rank: int) -> bool:
        return self.states.get(rank, "?") in STOPPED

    def is_dead(self, rank: int) -> bool:
        """Return true if a rank's process is gone, and the rank has reported no end or error.

        A rank that has called `sys.exit` reports an end, and its exit code shows that it failed.
        """
        status = self.ranks.get(rank)
        is_gone = self.states.get(rank, "?") in ENDED_STATES
        return status is not None and is_gone and ends_badly(status, self.exit_codes.get(rank))


def ends_badly(status: Status, code: int | None) -> bool:
    """Return true if the end of this process is not the one that it has reported."""
    return status.state == RUNNING or (status.state == ENDED and code is not None)


def read_evidence(run: Path, now_ns: int = 0, *, host: str = "*") -> Evidence | None:
    """Return what a run's status files say, or at `now_ns` do not; `None` if it has none."""
    folder = run / FOLDER
    statuses: list[Status] = []
    damaged = []
    for found in read_statuses(folder, host):
        if isinstance(found, Status):
            statuses.append(found)
        else:
            damaged.append(str(found))
    if not statuses:
        if damaged:
            return Evidence({}, 0, damaged=tuple(damaged))
        return None
    by_rank: dict[int, list[Status]] = {}
    for status in statuses:
        by_rank.setdefault(status.rank, []).append(status)
    chosen = {rank: choose_status(found) for rank, found in sorted(by_rank.items())}
    newest = max([now_ns, *(status.written_ns for status in chosen.values())])
    silent = find_silent(folder, chosen, newest, is_live=now_ns > 0)
    native, crashed = set[int](), set[int]()
    workers = tuple(read_workers(folder))
    for rank, status in chosen.items():
        status, is_held, has_crashed = join_seen(folder, status)  # noqa: PLW2901  # the same rank
        native.update({rank} if is_held or has_crashed else ())
        crashed.update({rank} if has_crashed else ())
        if not status.is_interactive:  # a prompt is no program
            stack = name_own(status.stack)
            status = dataclasses.replace(status, stack=stack)  # noqa: PLW2901  # the same
        joined = join_workers(status, workers)
        chosen[rank] = dataclasses.replace(status, workers=joined)
    world_size = max([max(chosen) + 1, *(status.world_size for status in statuses)])
    exit_codes = read_exit_codes(folder, chosen)
    return Evidence(
        chosen,
        min(world_size, 100_000),
        read_states(folder, chosen, exit_codes),
        exit_codes,
        silent,
        frozenset(native),
        frozenset(crashed),
        tuple(damaged),
        newest,
    )


def choose_status(statuses: list[Status]) -> Status:
    """Return the status of the process that trains as this rank, not of one that it started."""
    newest = max(status.written_ns for status in statuses)
    recent = [status for status in statuses if newest - status.written_ns < SAME_TIME_NS]
    return max(recent, key=lambda status: (status.steps, bool(status.calls), -status.started_ticks))


def read_seen(folder: Path, status: Status, suffix: str) -> Status | None:
    """Return what the eye saw of a rank's process; `None` if it saw no stack."""
    try:
        seen = Status.read(folder / status.file_name.replace(SUFFIX, suffix))
    except UnreadableError:
        return None
    is_same = seen.stack and seen.started_ticks == status.started_ticks
    if is_same:
        return seen
    return None


def join_seen(folder: Path, status: Status) -> tuple[Status, bool, bool]:
    """Add the stacks of the eye; say if the rank could not write them, and if it crashed."""
    seen, is_held = read_seen(folder, status, STACK_SUFFIX), False
    if seen is not None and seen.steps == status.steps and status.state != FAILED:
        is_held = seen.written_ns - HELD_NS > max(status.written_ns, seen.alive_ns)
        if not status.stack or seen.written_ns > status.written_ns:
            status = dataclasses.replace(
                status,
                stack=seen.stack,
                other_stacks=seen.other_stacks,
                alive_ns=max(status.alive_ns, seen.alive_ns),
            )
    crash = read_seen(folder, status, CRASH_SUFFIX) if status.state == RUNNING else None
    has_crashed = crash is not None and crash.written_ns + HELD_NS > status.written_ns
    if crash is not None and has_crashed:
        status = dataclasses.replace(status, stack=crash.stack)
    return status, is_held, has_crashed


def read_hosts(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what `profkit run` saw of processes, with its host and container."""
    for path in sorted(folder.glob(f"*{HOST_SUFFIX}")):
        content = read_or_nothing(path)
        yield path.name.removesuffix(HOST_SUFFIX), str(content.get("pid_space") or ""), content


def read_exit_codes(folder: Path, ranks: Mapping[int, Status]) -> dict[int, int]:
    """Return the exit codes that `profkit run` saw on each host."""
    codes, places = {}, find_places(ranks)
    for host, space, content in read_hosts(folder):
        for pid, code in _dictionary(content.get("exit_codes")).items():
            rank = find_rank(places, host, space, pid)
            if rank is not None and isinstance(code, int) and code:
                codes[rank] = code
    return codes


def read_states(
    folder: Path, ranks: Mapping[int, Status], exit_codes: Mapping[int, int]
) -> dict[int, str]:
    """Return the last states that `profkit run` or another rank saw of these processes."""
    places = find_places(ranks)
    seen = read_peers(ranks, places)
    ends: dict[int, int] = {}
    were_told = set()
    for host, space, content in read_hosts(folder):
        for pid, state in _dictionary(content.get("states")).items():
            rank = find_rank(places, host, space, pid)
            if rank is not None:
                seen[rank] = str(state)
        told_ns = content.get("told_ns")
        for pid, ended_ns in _dictionary(content.get("ended_ns")).items():
            rank = find_rank(places, host, space, pid)
            if rank is None or not isinstance(ended_ns, int):
                continue
            if ended_ns < ranks[rank].written_ns - SAME_TIME_NS:
                continue  # another process had this id before
            ends[rank], seen[rank] = ended_ns, GONE
            if isinstance(told_ns, int) and ended_ns > told_ns - TOGETHER_NS:
                were_told.add(rank)
    first = keep_first_ends(seen, ends, ranks, exit_codes)
    return {rank: state for rank, state in first.items() if rank not in were_told}


def read_peers(ranks: Mapping[int, Status], places: Places) -> dict[int, str]:
    """Return the last states of ranks' processes that other ranks saw."""
    seen: dict[int, str] = {}
    for status in sorted(ranks.values(), key=lambda status: status.written_ns):
        for pid, state in status.peers.items():
            rank = find_rank(places, plain_host(status.host), status.pid_space, pid)
            if rank is not None and ranks[rank].written_ns < status.written_ns:
                seen[rank] = str(state)
    return seen


def keep_first_ends(
    seen: dict[int, str],
    all_ends: Mapping[int, int],
    ranks: Mapping[int, Status],
    exit_codes: Mapping[int, int],
) -> dict[int, str]:
    """Drop the ends of ranks that ended after another one: their launcher ends them then.

    If all ended together and in the same way, something outside the job ended it. A rank that ended
    without an error before a rank that SIGTERM ended may have had an exit code that nobody saw. A
    rank whose connection was cut did not fail first, if another process had ended before its own.
    """
    ends = {}
    for rank, at in all_ends.items():
        if ends_badly(ranks[rank], exit_codes.get(rank)):
            ends[rank] = at
    if not ends:
        return seen
    first = earliest = min(ends.values())
    is_told = set(map(exit_codes.get, ends)) == {-signal.SIGTERM}
    for rank, status in ranks.items():
        was_cut = status.state == FAILED and CUT_OFF.search(status.error)
        if was_cut and all_ends.get(rank, 0) > earliest + TOGETHER_NS:
            continue
        if status.state == FAILED or (is_told and status.state == ENDED):
            first = min(first, status.written_ns)
    together: dict[int, list[int]] = {}
    for rank, ended_ns in ends.items():
        if ended_ns - first <= TOGETHER_NS:
            together.setdefault(FORCED.get(exit_codes.get(rank, 0), 0), []).append(rank)
    kept = together[min(together)] if together else []
    if len(kept) == len(ranks) > 1 and set(map(exit_codes.get, kept)) <= {None, *FORCED}:
        kept = []
    return {rank: state for rank, state in seen.items() if rank in kept or rank not in ends}


def _dictionary(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


def read_or_nothing(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except UnreadableError:
        return {}


def read_workers(folder: Path) -> Iterator[tuple[tuple[str, str], Worker]]:
    """Yield the loader workers that were in one batch for long, with host and container."""
    for path in sorted(folder.glob(f"*{WORKER_SUFFIX}")):
        try:
            status = Status.read(path)
        except UnreadableError:
            continue
        worker = Worker("", status.pid, status.thread_state, status.reads, status.stack)
        yield (plain_host(status.host), status.pid_space), worker


def join_workers(
    status: Status, found: tuple[tuple[tuple[str, str], Worker], ...]
) -> tuple[Worker, ...]:
    """Return the rank's processes, with the stacks that they wrote themselves."""
    stacks = {}
    for where, worker in found:
        if where == (plain_host(status.host), status.pid_space):
            stacks[worker.pid] = worker
    joined = []
    for worker in status.workers:
        own = stacks.get(worker.pid)
        if own is not None and worker.state not in ENDED_STATES:
            worker = dataclasses.replace(  # noqa: PLW2901  # the same worker, completed
                worker, stack=own.stack, reads=worker.reads or own.reads
            )
        joined.append(worker)
    return tuple(joined)


def shown_name(frame: Frame) -> str:
    """Return a frame as people write it: `train.py:88 decode`."""
    file = frame.file.rpartition("/")[2] or frame.file
    function = frame.function.rpartition("<locals>.")[2]
    return safe_text(f"{file}:{frame.line} {function}")


# Find the rank of a process by its host, its container and its process id.
Places: TypeAlias = Mapping[tuple[str, str], Sequence[tuple[str, int]]]
"""The container and the rank of each process, by host and process id."""


def find_places(ranks: Mapping[int, Status]) -> Places:
    """Return the ranks by their processes: containers of one host's name may share an id."""
    places: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for rank, status in ranks.items():
        key = plain_host(status.host), str(status.pid)
        places.setdefault(key, []).append((status.pid_space, rank))
    return places


def find_rank(places: Places, host: str, space: str, pid: str) -> int | None:
    """Return the rank with this process; `None` if no rank has it, or several may have it."""
    found = []
    for own, rank in places.get((host, pid), ()):
        if own == space or not own or not space:
            found.append(rank)
    if len(found) == 1:
        return found[0]
    return None


# Find the ranks that have written nothing while others did.
SILENT_AFTER_S = 6.0
"""A rank is silent if its status is older than the newest one by this, or by half the limit."""


def find_silent(
    folder: Path, ranks: Mapping[int, Status], newest_ns: int, *, is_live: bool
) -> frozenset[int]:
    """Return the silent ranks. While the job runs, the clock of another host proves nothing.

    The files of one folder have the times of one clock, unless they were copied.
    """
    files = {rank: file_time_ns(folder, status) for rank, status in ranks.items()}
    newest_file_ns = max(files.values(), default=0)
    silent = set()
    for rank, status in ranks.items():
        late_ns = max(SILENT_AFTER_S, status.limit_s / 2) * 1e9
        is_late = status.state == RUNNING and newest_ns - status.written_ns > late_ns
        is_far = is_live and status.host != platform.node()
        if is_late and (not is_far or newest_file_ns - files[rank] > late_ns):
            silent.add(rank)
    return frozenset(silent)


def file_time_ns(folder: Path, status: Status) -> int:
    try:
        return (folder / status.file_name).stat().st_mtime_ns
    except OSError:
        return 0
