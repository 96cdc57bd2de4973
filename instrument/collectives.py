"""Records collectives that a job calls itself, outside the gradient exchange."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profkit.clock import Clock, now_ns
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append
from profkit.instrument.sent import Group, Here, Sent, name_group
from profkit.vocab import Phase

_ALLREDUCE = Phase.ALLREDUCE.value


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


HERE = Here()

CompiledSent: type[Sent] = Sent
"""The operation in C, or that in Python if profkit was installed without a compiler."""

with contextlib.suppress(ImportError):
    from profkit.instrument import _calls

    CompiledSent = _calls.Sent


@dataclass(frozen=True, eq=False)
class CallLog:
    """Makes the rows of these calls; `sequences` counts all collectives of each communicator."""

    recorder: Recorder
    append: Append
    sequences: Mapping[str, Iterator[int]]
    clock: Clock = now_ns
    handles: dict[int, tuple[Any, Sent]] = field(default_factory=dict)
    """The calls for whose result the job may wait, by the ids of their handles.

    With each call goes what keeps its handle alive, or forgets it when the handle is gone.
    """
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
            group, is_waited = sent.group, sent.is_sync or sent.is_waited
            # A backend that blocks does not say when a message is over for which nobody waits.
            is_unknown = group.peer is not None and group.blocks and not is_waited
            numbered.add((group.name, sent.sequence))
            yield Entered(
                name_group(group.name),
                sent.sequence,
                sent.op,
                *sent.message,
                sent.is_over or is_unknown,
                sent.start_ns,
                members=() if group.peer is not None else group.members,
                peer=group.peer,
            )
        for name, sequence in list(self.sequences.items()):
            latest = following(sequence) - 1
            if latest >= 0 and (name, latest) not in numbered:
                yield Entered(name_group(name), latest, "", 0, "", done=True, since_ns=0)

    def begin(self, group: Group, op: str, message: tuple[int, str]) -> Sent:
        device = self.recorder.device
        mark = device.mark() if device is not None and not group.blocks else None
        numbers = self.sequences if group.peer is None else self.pairs
        sequence = next(numbers[group.name])
        step = self.recorder.step_now
        sent = CompiledSent(group, op, message, sequence, step, self.clock(), mark)
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
            recorder.drop_marks(sent.mark)
            return
        device, (size, dtype) = recorder.device, sent.message
        # A `CollectiveRow` as a plain tuple: naming its fields here costs 1 us.
        row = (
            group.name, sent.sequence, sent.op, size, dtype, group.size, sent.start_ns,
            sent.start_ns, now, group.backend, sent.step, None, group.dimension, sent.module,
            sent.microbatch,
        )  # fmt: skip
        if group.blocks:
            self.append(row)
            if waited:
                recorder.keep_inner(_ALLREDUCE, sent.op, sent.start_ns, now)
        elif device is not None:
            has_own_end = sent.is_sync or not sent.ends_with_wait
            end = device.mark()
            device.hold_collective(row, sent.mark, end, self.append, has_own_end=has_own_end)

    def end_wait(self, sent: Sent, start_ns: int) -> None:
        """Record that this thread has waited since `start_ns`, which may be the call's own end."""
        if sent.ends_with_wait:
            for each in (sent, *sent.together):
                self.end(each, waited=sent.is_sync)
        waits_on_host = sent.group.blocks or self.recorder.device is None
        if waits_on_host and not sent.is_sync:
            self.recorder.keep_inner(_ALLREDUCE, sent.op, start_ns, self.clock())

    def forget(self, sent: Sent) -> None:
        """Leave out a call whose handle is gone: nobody can wait for it any more."""
        for each in (sent, *sent.together):
            if not each.is_over:
                each.is_over = True
                self.recorder.drop_marks(each.mark)


def following(numbers: Iterator[int]) -> int:
    """Return the next number of an `itertools.count`, without taking it."""
    shown = repr(numbers)  # its only way to be read that is not deprecated
    return int(shown[shown.index("(") + 1 : -1])
