"""Records collectives that a job calls itself, outside the gradient exchange."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profkit.clock import Clock, now_ns
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, CollectiveRow, Event
from profkit.vocab import Phase


class Call(NamedTuple):
    """A framework's function and the parameter that holds its message.

    With `is_part`, the message of one call is one rank's part of the whole.
    """

    op: str
    message: str
    is_part: bool = False


class Group(NamedTuple):
    """The ranks that take part. With `blocks`, a call returns only with its result."""

    name: str
    size: int
    backend: str
    blocks: bool
    members: tuple[int, ...] = ()
    """Its ranks in the job; empty if they are not known."""
    peer: int | None = None
    """The other rank, if the group is the two ranks of a message."""
    dimension: str | None = None
    """The dimension of the job's device mesh that the group connects, if it is known."""


class Message(NamedTuple):
    """The size of a tensor and the type of its elements."""

    bytes: int
    dtype: str


class Entered(NamedTuple):
    """A collective that this process has entered, for a thread that looks from outside."""

    group: str
    sequence: int
    op: str
    bytes: int
    dtype: str
    done: bool
    since_ns: int
    bucket: int | None = None
    members: tuple[int, ...] = ()
    peer: int | None = None


MOST_ENTERED = 32
"""Collectives that a process remembers, to be compared with other ranks after a hang."""


@dataclass(eq=False, slots=True)
class Sent:
    """A collective that a process has entered."""

    group: Group
    op: str
    message: Message
    sequence: int
    step: int
    start_ns: int
    mark: Event | None
    is_over: bool = False
    is_sync: bool = False
    """True if its call returns only when it has ended: all of it is exposed."""
    ends_with_wait: bool = False
    """True if the end is known only by the wait for it."""
    address: int = 0
    """Where its result will be, if the job may wait for that instead of a handle."""
    module: str | None = None
    microbatch: int | None = None


class Quiet(threading.local):
    """Marks threads inside a call that makes rows of its own, so that calls in it make none."""

    inside = False
    sent_ns = 0
    """The time of the first collective called inside, since a caller set this to 0."""


QUIET = Quiet()


@dataclass(frozen=True, eq=False)
class CallLog:
    """Makes the rows of these calls; `sequences` counts all collectives of each communicator."""

    recorder: Recorder
    append: Append
    sequences: Mapping[str, Iterator[int]]
    clock: Clock = now_ns
    sent: weakref.WeakKeyDictionary[Any, Sent] = field(default_factory=weakref.WeakKeyDictionary)
    """The calls that did not wait and for whose result the host can wait, by their handles."""
    last: deque[Sent] = field(default_factory=lambda: deque(maxlen=MOST_ENTERED))
    """The last calls, for a thread that looks from outside."""
    pairs: defaultdict[str, Iterator[int]] = field(
        default_factory=lambda: defaultdict(itertools.count)
    )
    """Number the messages between each two ranks, in which the others of a group take no part."""

    def __post_init__(self) -> None:
        self.recorder.in_flight.add(self)

    def entered(self) -> Iterator[Entered]:
        """Yield the last calls, and the last number of each communicator that has others."""
        numbered = set()
        for sent in list(self.last):
            numbered.add((sent.group.name, sent.sequence))
            yield Entered(
                sent.group.name,
                sent.sequence,
                sent.op,
                sent.message.bytes,
                sent.message.dtype,
                sent.is_over,
                sent.start_ns,
                members=() if sent.group.peer is not None else sent.group.members,
                peer=sent.group.peer,
            )
        for name, sequence in list(self.sequences.items()):
            latest = following(sequence) - 1
            if latest >= 0 and (name, latest) not in numbered:
                yield Entered(name, latest, "", 0, "", done=True, since_ns=0)

    def begin(self, group: Group, op: str, message: Message) -> Sent:
        device = self.recorder.device
        mark = device.mark() if device is not None and not group.blocks else None
        numbers = self.sequences if group.peer is None else self.pairs
        sequence = next(numbers[group.name])
        step = self.recorder.step_index
        sent = Sent(group, op, message, sequence, step, self.clock(), mark)
        self.last.append(sent)
        return sent

    def end(self, sent: Sent, *, waited: bool) -> None:
        """Record a call whose result is there, or whose device knows when it is.

        With `waited`, this thread did nothing else from the call's beginning until now.
        """
        now = self.clock()
        sent.is_over = True
        recorder, group = self.recorder, sent.group
        if not recorder.recording:
            return
        row = CollectiveRow(
            communicator=group.name,
            sequence=sent.sequence,
            op=sent.op,
            bytes=sent.message.bytes,
            dtype=sent.message.dtype,
            group_size=group.size,
            ready_ns=sent.start_ns,
            start_ns=sent.start_ns,
            end_ns=now,
            backend=group.backend,
            step=sent.step,
            dimension=group.dimension,
            module=sent.module,
            microbatch=sent.microbatch,
        )
        device = recorder.device
        if group.blocks:
            self.append(row)
        elif device is not None:
            device.hold_collective(row, sent.mark, device.mark(), self.append)
        if waited and group.blocks:
            recorder.keep_inner(Phase.ALLREDUCE.value, sent.op, sent.start_ns, now)

    def end_wait(self, sent: Sent, start_ns: int) -> None:
        """Record that this thread has waited since `start_ns`, which may be the call's own end."""
        if sent.ends_with_wait:
            self.end(sent, waited=sent.is_sync)
        if not sent.is_sync:
            self.recorder.keep_inner(Phase.ALLREDUCE.value, sent.op, start_ns, self.clock())


def following(numbers: Iterator[int]) -> int:
    """Return the next number of an `itertools.count`, without taking it."""
    shown = repr(numbers)  # its only way to be read that is not deprecated
    return int(shown[shown.index("(") + 1 : -1])


@dataclass(frozen=True)
class Dialect:
    """The functions, groups and tensors of one framework."""

    calls: Mapping[str, Call]

    group: Callable[[Any], Group | None]
    """Return the group of a call, or `None` if this rank sends nothing."""

    message: Callable[[Any], Message]
    """Return the size and type of a tensor."""

    waits: Callable[[Mapping[str, Any]], bool]
    """Return true if a call with these arguments returns only when it has ended."""

    when_done: Callable[[Any, Callable[[], None]], object]
    """Call a function at the end of a call that did not wait, if the framework reports that."""

    is_traced: Callable[[], bool]
    """Return true if a compiler runs the call instead of the job."""


def hook_calls(patches: Patches, dialect: Dialect, log: CallLog, *owners: Any) -> None:
    """Make a row of every call of those of the dialect's functions that the modules have.

    A function that is in several modules stays one function, because jobs compare it and pickle it
    by its name.
    """
    for name, call in dialect.calls.items():
        wrap = functools.lru_cache(functools.partial(_wrap, dialect, log, call))
        for owner in owners:
            if callable(getattr(owner, name, None)):
                patches.replace(owner, name, wrap)


def _wrap(
    dialect: Dialect, log: CallLog, call: Call, original: Callable[..., Any]
) -> Callable[..., Any]:
    begin = guarded(
        "collective begun",
        functools.partial(_begin, dialect, log, call, inspect.signature(original)),
        None,
    )
    finish = guarded("collective done", functools.partial(_finish, dialect, log), None)
    is_traced = dialect.is_traced

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if QUIET.inside or is_traced():
            QUIET.sent_ns = QUIET.sent_ns or now_ns()
            return original(*args, **kwargs)
        begun = begin(args, kwargs)
        QUIET.inside = True
        try:
            work = original(*args, **kwargs)
        finally:
            QUIET.inside = False
        if begun is not None:
            finish(*begun, work)
        return work

    return collective


def _begin(
    dialect: Dialect,
    log: CallLog,
    call: Call,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Sent, bool] | None:
    given = signature.bind(*args, **kwargs).arguments
    group = dialect.group(given.get("group"))
    if group is None:
        return None
    tensors = given[call.message]
    if not isinstance(tensors, list | tuple):
        tensors = [tensors]
    parts = list(map(dialect.message, tensors))
    size = sum(part.bytes for part in parts)
    if call.is_part:
        size *= group.size
    return log.begin(group, call.op, Message(size, parts[0].dtype)), dialect.waits(given)


def _finish(dialect: Dialect, log: CallLog, sent: Sent, waits: bool, work: Any) -> None:
    if waits:
        log.end(sent, waited=True)
    elif work is not None:
        end = guarded("collective done", lambda: log.end(sent, waited=False), None)
        dialect.when_done(work, end)
