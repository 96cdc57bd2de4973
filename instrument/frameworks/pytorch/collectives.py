"""The collectives of a job, seen at the process group that all of them pass through.

Since torch 2.15 a process group calls hooks around each operation, whoever starts it: a function of
`torch.distributed`, FSDP, a functional collective, a pipeline, or C++. Before, the methods of the
class `ProcessGroup` are the lowest place that Python sees.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from profkit.instrument.collectives import HERE, CallLog
from profkit.instrument.frameworks.pytorch.compiler import set_eval_frame
from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.frameworks.pytorch.libraries import note_libraries
from profkit.instrument.frameworks.pytorch.observed_group import size_of
from profkit.instrument.frameworks.pytorch.operations import (
    BLOCKING,
    SAME_LIBRARY,
    WITH_FUTURES,
    Operation,
)
from profkit.instrument.guard import report_failure
from profkit.instrument.sent import Group, Sent, name_communicator, name_group
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


class Watched:
    """A process group whose operations are recorded."""

    def __init__(self, group: Group, rank: int, backends: Mapping[str, str]) -> None:
        self._group = group
        self._rank = rank
        self._backends = backends
        """The backend for each kind of device; a group may have several."""
        self.is_uniform = all(backend == group.backend for backend in backends.values())
        """True if all kinds of devices have the same backend."""
        self.open: dict[int, Sent] = {}
        """The operations between their two hooks."""
        self._groups: dict[tuple[str, str, int], Group] = {}
        self._layout = LAYOUT.version

    def group(self, device: str, op: str, root: int) -> Group:
        """Return the ranks that take part in an operation on tensors of this kind of device."""
        if self._layout != LAYOUT.version:  # a mesh was made, and may name the dimension
            self._layout = LAYOUT.version
            self._groups.clear()
        is_message = op in ("send", "recv")
        key = device, op if is_message else "", root if is_message else -1
        found = self._groups.get(key)
        if found is None:
            group, backend = self._group, self._backends.get(device, self._group.backend)
            group = group._replace(
                backend=SAME_LIBRARY.get(backend, backend),
                blocks=backend in BLOCKING,
                has_futures=backend in WITH_FUTURES,
            )
            dimension = LAYOUT.dimensions.get(name_group(group.name))
            group = group._replace(dimension=dimension or None)
            if is_message:
                group = self._pair(group, op, root)
            found = self._groups[key] = group
        return found

    def _pair(self, group: Group, op: str, other: int) -> Group:
        """Return the sender and the receiver of a message as a group of their own.

        The messages of one pair match by their order, and the other ranks take no part in them.
        """
        own = self._rank
        peer = other if other >= 0 else own  # a receiver may take a message of any rank
        named = str(other) if other >= 0 else "?"
        name = f"{group.name}:{own}>{named}" if op == "send" else f"{group.name}:{named}>{own}"
        return group._replace(
            name=name, size=2, peer=group.members[peer] if group.members else peer
        )


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
        device = name = ""
        size, op = 0, operation.op
        if tensors:
            first = tensors[0]
            device, dtype = first.device.type, first.dtype
            name = self.dtypes.get(dtype, "")
            if not name:
                name = self.dtypes[dtype] = str(dtype).removeprefix("torch.")
            for tensor in tensors:
                size += size_of(tensor) if tensor.is_sparse else tensor.nbytes
        group = watched.group(device, op, root)
        if operation.is_part:
            size *= group.size
        sent = self.log.begin(group, op, (size, name))
        sent.module, sent.has_future = HERE.module, operation.has_future
        if self.microbatches and op in ("send", "recv"):
            sent.microbatch = self.microbatches.pop(tensors[0].data_ptr(), None)
        return sent

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


def describe_group(real: Any) -> Watched | None:
    """Return a process group as rows name it, or `None` if this rank is not in it."""
    rank = int(real.rank())
    if rank < 0:
        return None
    note_libraries()
    backends = {}
    for device in real._device_types:  # noqa: SLF001  # torch has no public name for it
        with contextlib.suppress(RuntimeError):  # a device that this machine lacks
            backends[device.type] = real._get_backend(device).name().lower()  # noqa: SLF001
    members = ranks_of(real)
    if not members:
        return None  # a group that torch did not make itself, which it knows nothing of
    name = communicator_of(real, members)
    backend = next(iter(backends.values()), "")
    if "cuda" in backends and torch.cuda.is_available():  # what has no tensors, as a barrier
        backend = backends["cuda"]
    group = Group(name, real.size(), backend, blocks=backend in BLOCKING, members=members)
    return Watched(group, rank, backends)


def ranks_of(real: Any) -> tuple[int, ...]:
    """Return the ranks of a process group; none of a group that torch did not make itself."""
    try:
        return tuple(torch.distributed.get_process_group_ranks(real))
    except (KeyError, RuntimeError, ValueError):
        return ()


def communicator_of(real: Any, members: Sequence[int]) -> str:
    """Return the name that rows have for the communicator of a process group."""
    name = str(getattr(real, "group_name", "") or "default")
    if not members:
        return name
    return name_communicator(name, members, torch.distributed.get_world_size())
