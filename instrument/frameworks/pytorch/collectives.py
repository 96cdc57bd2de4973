"""The collectives of a job, seen at the process group that all of them pass through.

Since torch 2.15 a process group calls hooks around each operation, whoever starts it: a function of
`torch.distributed`, FSDP, a functional collective, a pipeline, or C++. Before, the methods of the
class `ProcessGroup` are the lowest place that Python sees.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from profkit.instrument.collectives import HERE, CallLog
from profkit.instrument.frameworks.pytorch.compiler import set_eval_frame
from profkit.instrument.frameworks.pytorch.groups import Watched
from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.frameworks.pytorch.observed_group import size_of
from profkit.instrument.frameworks.pytorch.operations import Operation
from profkit.instrument.guard import report_failure
from profkit.instrument.sent import Part, Sent
from profkit.vocab import Phase

_ALLREDUCE: Final = Phase.ALLREDUCE.value

HOOK_ID: Final = 0x70726F66
"""The number of our hooks among those of a group; one that another tool has would replace them."""

MOST_OPEN: Final = 4_096
"""Operations that have begun and neither returned nor been waited for; more of them have failed."""

CompiledCalls: Any = None
"""The usual operations in C, or nothing if profkit was installed without a compiler."""

with contextlib.suppress(ImportError):
    from profkit.instrument import _calls

    CompiledCalls = _calls.Calls


class GroupCalls:
    """Makes rows of what process groups do, from the hooks before and after each operation."""

    def __init__(self, log: CallLog, looks: list[Callable[[], None]]) -> None:
        self.log = log
        self.looks = looks
        """Called when the job has imported something since the last operation."""
        self.dtypes: dict[Any, str] = {}
        self.by_address = False
        """True if the job may wait for operations without a handle."""
        self.in_flight: dict[int, Sent] = {}
        """Operations that the job may wait for without a handle, by the address of their result."""
        self.microbatches: dict[int, int] = {}
        """The microbatches of messages that a pipeline is about to send or receive, by address."""
        self.silent: set[tuple[str, str]] = set()
        """The backends and operations whose handles do not report the end."""
        self.modules_seen = 0
        self.compiled: Any = None
        if CompiledCalls is not None:
            self.compiled = CompiledCalls(
                self, HERE, LAYOUT, set_eval_frame, report_failure, MOST_OPEN
            )

    def look(self) -> None:
        """Hook what the job has imported since."""
        count = len(sys.modules)
        if count != self.modules_seen:
            self.modules_seen = count
            for look in self.looks:
                look()

    def begin(
        self, watched: Watched, operation: Operation, tensors: Sequence[Any], root: int
    ) -> Sent:
        """Note that an operation begins, of which these tensors are the message.

        This and `end` run in each call of the job, so they call no function that they can spare.
        """
        if len(sys.modules) != self.modules_seen:
            self.look()
        op = operation.op
        group = watched.group(tensors[0].device.type if tensors else "", op, root)
        sent = self.log.begin(group, op, self.measure(operation, tensors, group.size))
        sent.module, sent.has_future = HERE.module, operation.has_future
        if self.microbatches and op in ("send", "recv"):
            sent.microbatch = self.microbatches.pop(tensors[0].data_ptr(), None)
        return sent

    def note_part(
        self, watched: Watched, operation: Operation, tensors: Sequence[Any], root: int
    ) -> None:
        """Note what the job's own communication hook sends for a bucket.

        Messages to single ranks are none: a bucket has one group, and each of them another one.
        """
        if HERE.parts is not None and not operation.is_message:
            op = operation.op
            group = watched.group(tensors[0].device.type if tensors else "", op, root)
            size, dtype = self.measure(operation, tensors, group.size)
            HERE.parts.append(Part(op, size, dtype, group))

    def measure(
        self, operation: Operation, tensors: Sequence[Any], group_size: int
    ) -> tuple[int, str]:
        """Return the bytes of a message and the type of its elements."""
        name, size = "", 0
        if tensors:
            dtype = tensors[0].dtype
            name = self.dtypes.get(dtype, "")
            if not name:
                name = self.dtypes[dtype] = str(dtype).removeprefix("torch.")
            for tensor in tensors:
                size += size_of(tensor) if tensor.is_sparse else tensor.nbytes
        return size * group_size if operation.is_part else size, name

    def end(self, sent: Sent, work: Any, *, is_async: bool) -> None:
        """Note that an operation was handed over; its end is known when somebody has waited."""
        group = sent.group
        if not group.blocks and HERE.coalesced is not None:
            HERE.coalesced.append(sent)
        elif work is None:
            self.log.end(sent, waited=True)
        elif not is_async:
            sent.is_sync = True
            self._await(sent, work)
        else:
            if sent.address and group.blocks:
                if len(self.in_flight) >= MOST_OPEN:  # mostly those whose handles were waited for
                    self.in_flight.clear()
                self.in_flight[sent.address] = sent
            if group.peer is not None and group.blocks and not HERE.sends:
                # It wakes threads of the backend, which may take the processor.
                log = self.log
                log.recorder.keep_inner(_ALLREDUCE, sent.op, sent.start_ns, log.clock())
            self.follow(sent, work)

    def _await(self, sent: Sent, work: Any) -> None:
        """Record an operation when the job has waited for it."""
        handles, before = self.log.handles, HERE.work
        held, missed = handles.get(id(before), (None, None))
        if missed is not None and missed.is_sync:  # nobody waited for it
            del handles[id(before)]
            self.follow(missed, held)
        sent.ends_with_wait = True
        if sent.is_sync:
            handles[id(work)] = work, sent
        else:
            self._remember(work, sent)
        HERE.work = work

    def end_together(self, sent: Sequence[Sent], work: Any) -> None:
        """Record operations with one handle when the job has waited for it.

        Nobody may ask for its future, which NCCL does not make here.
        """
        first, *others = sent
        first.together = tuple(others)
        self._await(first, work)

    def follow(self, sent: Sent, work: Any) -> None:
        """Record an operation when its result is there, or else when the job has waited for it."""
        kind, future = (sent.group.backend, sent.op), None
        may_ask = sent.group.has_futures and (sent.has_future or sent.group.blocks)
        if may_ask and kind not in self.silent:
            try:
                future = work.get_future()
            except RuntimeError:  # gloo has none for messages and some collectives
                self.silent.add(kind)
        if future is None:
            if sent.is_sync:
                self.log.forget(sent)
            else:
                self._await(sent, work)
            return
        if sent.group.blocks:
            self._remember(work, sent)
        future.add_done_callback(self._end_of(sent, work))

    def _end_of(self, sent: Sent, work: Any) -> Any:
        """Return what a future calls when the operation is done."""
        if self.compiled is not None:
            return self.compiled.done(sent, work)

        def end(_: Any, held: Any = work) -> None:
            # `held` keeps the handle, by which `Work.wait` finds the operation. A thread of the
            # backend calls this, and the job waits for it.
            try:
                if sent.address and self.in_flight.get(sent.address) is sent:
                    del self.in_flight[sent.address]
                self.log.end(sent, waited=False)
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("collective done", failure)

        return end

    def _remember(self, work: Any, sent: Sent) -> None:
        """Find an operation by its handle, as long as the job or a callback keeps that."""
        held = Held(work, forget)
        held.log, held.key, held.sent = self.log, id(work), sent
        self.log.handles[held.key] = held, sent


class Held(weakref.ref[Any]):
    """A handle that the job may drop. To make a callback for each one would cost more."""

    __slots__ = ("key", "log", "sent")

    key: int
    log: CallLog
    sent: Sent


def forget(held: Held) -> None:
    """Forget the operation of a handle that is gone, unless the job has waited for it."""
    try:
        if held.log.handles.pop(held.key, None) is not None:
            held.log.forget(held.sent)
    except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
        report_failure("collective forgotten", failure)
