"""Collectives that a job calls itself, beside the gradient exchange of its framework's wrapper: one row each."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from profkit.clock import Clock, now_ns
from profkit.instrument.device import DeviceTimer, Event
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Append, Recorder
from profkit.vocab import Phase


class Call(NamedTuple):
    """A function of a framework: which of its parameters holds the message, and whether that is one rank's part of it."""

    op: str
    message: str
    is_part: bool = False


class Group(NamedTuple):
    """The ranks that take part. `blocks`: the call returns with the result, and the host has waited for it."""

    name: str
    size: int
    backend: str
    blocks: bool


class Message(NamedTuple):
    bytes: int
    dtype: str


@dataclass(frozen=True)
class Sent:
    """A collective that is under way."""

    group: Group
    op: str
    message: Message
    sequence: int
    step: int
    start_ns: int
    mark: Event | None


class Quiet(threading.local):
    """Whether this thread is inside something that makes rows of its own."""

    inside = False
    sent_ns = 0
    """When something was first handed to the library from inside; whoever wants to know sets it to 0 before."""


QUIET = Quiet()


class CallLog:
    """The rows of these calls. `sequences` counts each communicator's collectives, whoever makes them."""

    def __init__(
        self,
        recorder: Recorder,
        append: Append,
        sequences: Mapping[str, Iterator[int]],
        *,
        clock: Clock = now_ns,
    ) -> None:
        self._recorder = recorder
        self._append = append
        self._sequences = sequences
        self._clock = clock

    def begin(self, group: Group, op: str, message: Message) -> Sent:
        device = self._recorder.device
        mark = device.mark() if device is not None and not group.blocks else None
        return Sent(
            group,
            op,
            message,
            next(self._sequences[group.name]),
            self._recorder.step_index,
            self._clock(),
            mark,
        )

    def end(self, sent: Sent, *, waited: bool) -> None:
        """Its result is there, or its device will know when; `waited`: this thread did nothing else meanwhile."""
        now = self._clock()
        if not self._recorder.recording:
            return
        row = (
            sent.group.name,
            sent.sequence,
            sent.op,
            *sent.message,
            sent.group.size,
            sent.start_ns,
            sent.start_ns,
            now,
            sent.group.backend,
            sent.step,
            None,
        )
        device: DeviceTimer | None = self._recorder.device
        if sent.group.blocks:
            self._append(row)
        elif device is not None:
            device.hold(row, sent.mark, device.mark(), self._append)
        if waited and sent.group.blocks:
            self._recorder.keep_inner(Phase.ALLREDUCE.value, sent.op, sent.start_ns, now)


class Dialect:
    """What differs between frameworks: their functions, groups, tensors, and how a call that does not wait tells its end."""

    calls: Mapping[str, Call]

    def group(self, given: Any) -> Group | None:
        """The group of a call; `None` where this rank sends nothing."""
        raise NotImplementedError

    def message(self, tensor: Any) -> Message:
        raise NotImplementedError

    def waits(self, arguments: Mapping[str, Any]) -> bool:
        raise NotImplementedError

    def when_done(self, work: Any, then: Callable[[], None]) -> None:
        """Have `then` called at the end of a call that did not wait; never, where nobody tells."""

    def is_traced(self) -> bool:
        """Whether a compiler runs the call instead of the job."""
        return False


def hook_calls(patches: Patches, dialect: Dialect, log: CallLog, *owners: Any) -> None:
    """Make a row of every call of the dialect's functions that the modules have.

    A function that is in several modules stays one function: it is compared and pickled by its name.
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

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if QUIET.inside or dialect.is_traced():
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
    parts = [
        dialect.message(tensor)
        for tensor in (tensors if isinstance(tensors, list | tuple) else [tensors])
    ]
    size = sum(part.bytes for part in parts) * (group.size if call.is_part else 1)
    return log.begin(group, call.op, Message(size, parts[0].dtype)), dialect.waits(given)


def _finish(dialect: Dialect, log: CallLog, sent: Sent, waits: bool, work: Any) -> None:
    if waits:
        log.end(sent, waited=True)
    elif work is not None:
        dialect.when_done(
            work, guarded("collective done", lambda: log.end(sent, waited=False), None)
        )
