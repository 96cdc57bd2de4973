"""The status file that each rank leaves: its last step, its stack, its collectives.

A rank replaces its file every second or two, so it is there after a SIGKILL too. Times are those of
the rank's own clock of the day. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from profkit.errors import UnreadableError
from profkit.job_code import CodeLine, mark_own
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json, replace_json, with_checksum
from profkit.vocab import OWN_CODE, PACKAGE_CODE

FOLDER = "status"
"""The folder of status files inside a run."""

SUFFIX = ".rank.json"
STACK_SUFFIX, CRASH_SUFFIX = ".stack.json", ".crash.json"
"""Suffixes of the files of the eye: the stacks of a rank that stands still, and of a crash."""

WORKER_SUFFIX = ".worker.json"
"""Suffix of the file with the stack of a loader's worker whose rank stands still."""

LIMIT_VARIABLE = "PROFKIT_HANG_AFTER"
"""The environment variable that says after how many seconds without a step a job stands still."""

DEFAULT_LIMIT_S, LONGEST_TICK_S = 30.0, 1.0
TICKS_PER_LIMIT, TICKS_PER_WRITE = 30, 5
"""Ranks look once in a tick. While steps end, they write their status once in so many ticks."""

STANDS_AFTER = 1 / 6
"""Ranks look closely after this part of the limit without a step."""

USUAL_STEPS = 10
"""A job stands still if no step ends for this many usual steps, or for the limit if longer."""

IMPORTED = "an imported dump"
"""Source of the calls of a status that comes from a dump alone."""

MOST_HOST_CHARS = 40
MOST_CALLS = 64
"""Calls in a status; a dump holds thousands."""

MESSAGES = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
"""Operations between two ranks, in which the others of a group take no part."""

LARGEST = 2**63
"""Numbers in a status are smaller; Python's JSON also reads NaN, infinity and longer ones."""

RUNNING, ENDED, FAILED = "running", "ended", "failed"
"""States of a rank. One that was killed stays `running`."""

T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """One line of a stack. `origin` is whose code it is, as in the table `frames`."""

    file: str
    function: str
    line: int
    origin: str


@dataclass(frozen=True)
class Call:
    """A collective that a rank has entered. `done` is true once the rank has its result."""

    group: str
    sequence: int
    op: str
    bytes: int = 0
    dtype: str = ""
    members: tuple[int, ...] = ()
    """The ranks of the group; empty if they are not known."""
    done: bool = False
    since_ns: int = 0
    peer: int | None = None
    """The other rank of a `send` or `recv`."""
    bucket: int | None = None
    started: bool | None = None
    """True if its kernel runs on the device; null if the backend does not say."""
    called: str = ""
    """The operation that the job called, if its backend does it by another one."""

    @property
    def is_message(self) -> bool:
        """True if it is numbered by its two ranks; a receiver may not know the sender."""
        return self.peer is not None or self.op in MESSAGES


@dataclass(frozen=True)
class Worker:
    """A process that the rank has started, mostly a worker of its data loader."""

    name: str
    pid: int
    state: str
    """The letter in `/proc`; empty if the process is gone."""
    reads: str = ""
    stack: tuple[Frame, ...] = ()
    exit_code: int | None = None
    """Negative for a signal; null if it runs, or if the kernel does not say."""


@dataclass(frozen=True)
class Status:
    """The state of one rank at `written_ns`."""

    rank: int
    world_size: int
    host: str
    pid: int
    started_ticks: int = 0
    """The start of the process in `/proc`, because process ids are used again."""
    pid_space: str = ""
    """The kernel and the namespace to which the process id belongs, if it is known."""
    framework: str = ""
    store: str = ""
    """The address at which the ranks meet, by the launcher's variables."""
    written_ns: int = 0
    moved_ns: int = 0
    """When the last step ended, or the process began to be followed."""
    alive_ns: int = 0
    """When the training thread last used a processor noticeably, or ran another line."""
    steps: int = 0
    usual_step_s: float = 0.0
    limit_s: float = DEFAULT_LIMIT_S
    state: str = RUNNING
    error: str = ""
    evaluates: bool = False
    loaders_over: bool = False
    """True if the loop has used up all loaders: it is between two epochs, or after the last one."""
    is_interactive: bool = False
    """True if the process has a prompt, as a notebook has; known while no step ends."""
    region: str = ""
    """The part outside of training that the loop has reported, such as `checkpoint`."""
    thread_state: str = ""
    """The letter of the training thread in `/proc`: R, S, D, T, ..."""
    system_call: str = ""
    reads: str = ""
    """The file or address that the system call is about."""
    kernel_wait: str = ""
    cpu_share: float | None = None
    """Processor time of the training thread per second, at the last look."""
    device_behind_s: float | None = None
    """Time for which the device has been at work that was launched before; null if unknown."""
    stack: tuple[Frame, ...] = ()
    """The stack of the training thread, the innermost frame first."""
    other_stacks: tuple[tuple[Frame, ...], ...] = ()
    """Stacks of other threads that are inside the job's own code."""
    calls: tuple[Call, ...] = ()
    """The last collectives that the rank has entered, and the first open ones, in their order."""
    calls_from: str = ""
    """The source of `calls`; empty if there is none."""
    workers: tuple[Worker, ...] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    """States of the other ranks' processes on this host, by process id."""
    announced: Mapping[str, Any] = field(default_factory=dict)
    """What the eye must know to read the stacks of this process."""

    @property
    def limit_ns(self) -> int:
        """Time without a step after which this rank stands still."""
        return int(max(self.limit_s, USUAL_STEPS * self.usual_step_s) * 1e9)

    @property
    def stood_ns(self) -> int:
        return max(0, self.written_ns - self.moved_ns)

    @property
    def stands_still(self) -> bool:
        """Return true if no step has ended for so long that stacks are read."""
        return self.stood_ns >= max(self.limit_ns * STANDS_AFTER, 2e9 * self.usual_step_s)

    @property
    def is_idle(self) -> bool:
        """Return true if the process is at its prompt: it runs no code of the job."""
        return self.is_interactive and own_frame(self.stack, OWN_CODE) is None

    @property
    def file_name(self) -> str:
        return f"{self.rank:05d}-{plain_host(self.host)}-{self.pid}{SUFFIX}"

    def as_content(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def write(self, folder: Path, suffix: str = SUFFIX) -> None:
        path = folder / self.file_name.replace(SUFFIX, suffix)
        replace_json(path, with_checksum(self.as_content()))

    @classmethod
    def read(cls, path: Path) -> Status:
        """Return the status in a file; a damaged file is an `UnreadableError`."""
        content = read_json(path)
        try:
            return _build(cls, content)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UnreadableError(
                f"{safe_text(str(path))}: not a status of a rank; the file is damaged"
            ) from error


_PARTS: Mapping[str, Any] = {
    "stack": Frame,
    "calls": Call,
    "workers": Worker,
}
"""The fields that hold a list of other classes."""


def _build(kind: type[T], content: Mapping[str, Any]) -> T:
    """Return a dataclass from its JSON; unknown fields are those of a newer version."""
    values: dict[str, Any] = {}
    for known in dataclasses.fields(kind):  # type: ignore[arg-type]  # T is one of ours
        if known.name not in content:
            continue
        value = content[known.name]
        kinds: list[type] = []
        for name in str(known.type).split(" | "):
            kinds += _KINDS.get(name, (dict,))
        if known.name in _PARTS:
            value = tuple(_build(_PARTS[known.name], each) for each in value)
        elif known.name == "other_stacks":
            build = functools.partial(_build, Frame)
            value = tuple(tuple(map(build, stack)) for stack in value)
        elif known.name == "members":
            value = tuple(map(int, value))
        elif not isinstance(value, tuple(kinds)):
            raise TypeError(known.name)
        elif isinstance(value, int | float) and not abs(value) < LARGEST:
            raise ValueError(known.name)  # as NaN is
        values[known.name] = value
    return kind(**values)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
}


def plain_host(host: str) -> str:
    """Return a host's name as a part of a file's name.

    Long names are cut, with a checksum: those of pods often differ in their last letters only.
    """
    plain = "".join(letter if letter.isalnum() else "-" for letter in host) or "host"
    if len(plain) <= MOST_HOST_CHARS:
        return plain
    checksum = zlib.crc32(host.encode("utf-8", "surrogateescape"))
    return f"{plain[: MOST_HOST_CHARS - 9]}-{checksum:08x}"


def read_statuses(folder: Path, host: str = "*") -> Iterator[Status | UnreadableError]:
    """Yield the status of each process of a host, or of all, or why it cannot be read."""
    for path in sorted(folder.glob(f"*-{host}-*{SUFFIX}")):
        try:
            found = Status.read(path)
        except UnreadableError as error:
            yield error
        else:
            if host in {"*", plain_host(found.host)}:  # `a-1` also finds the files of `b-a-1`
                yield found


def read_limit(environ: Mapping[str, str]) -> float:
    """Return the limit in the environment in seconds, or the default; 0 raises no alarm."""
    try:
        limit = float(environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT_S)
    except ValueError:
        return DEFAULT_LIMIT_S
    if 0 <= limit < float("inf"):
        return limit
    return DEFAULT_LIMIT_S


def own_frame(stack: Sequence[Frame], origin: str) -> Frame | None:
    """Return the innermost frame of this origin."""
    return next((frame for frame in stack if frame.origin == origin), None)


def name_own(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return a whole stack whose frames of an installed job have the origin of the job's code."""
    lines = [
        CodeLine(each.file, each.function, each.line, each.origin == OWN_CODE) for each in stack
    ]
    marked = []
    for frame, is_own in zip(stack, mark_own(lines[::-1])[::-1], strict=True):
        origin = OWN_CODE if is_own else frame.origin
        if frame.origin == OWN_CODE and not is_own:
            origin = PACKAGE_CODE
        marked.append(
            frame if origin == frame.origin else dataclasses.replace(frame, origin=origin)
        )
    return tuple(marked)
