"""The calls around operations of process groups: waits, coalesced ones, and DDP's buffers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from profkit.instrument.collectives import HERE, CallLog, Message
from profkit.instrument.frameworks.pytorch.collectives import GroupCalls
from profkit.instrument.frameworks.pytorch.compiler import (
    outside_compiler,
    set_eval_frame,
    skip_code,
)
from profkit.instrument.frameworks.pytorch.groups import Watched, describe_group
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.models import MOST_MODELS
from profkit.instrument.sent import Sent


def hook_coalescing(patches: Patches, calls: GroupCalls) -> None:
    """Have operations that a device begins together end together."""
    group_type: Any = torch.distributed.ProcessGroup

    def begin() -> None:
        HERE.coalesced = []

    def end(work: Any) -> None:
        sent, HERE.coalesced = HERE.coalesced, None
        if not sent:
            return
        if work is not None:
            calls.end_together(sent, work)
            return
        for each in sent:
            calls.log.forget(each)

    begin_guarded = outside_compiler(guarded("collectives coalesced", begin, None))
    end_guarded = outside_compiler(guarded("collectives coalesced", end, None))

    def wrap_start(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            begin_guarded()
            return result

        return start

    def wrap_end(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def finish(*args: Any, **kwargs: Any) -> Any:
            work = None
            try:
                work = original(*args, **kwargs)
            finally:
                end_guarded(work)
            return work

        return finish

    patches.replace(group_type, "_start_coalescing", wrap_start)
    patches.replace(group_type, "_end_coalescing", wrap_end)


def hook_waits(patches: Patches, calls: GroupCalls) -> None:
    """Time how long the host waits for an operation.

    FSDP sends all of its collectives without waiting. Without this, the wait for a late rank is
    part of forward.
    """
    work_type: Any = torch.distributed.Work
    wrap = functools.partial(_wrap_wait, calls.log)
    if calls.compiled is not None:
        wrap = calls.compiled.wrap_wait
    patches.replace(work_type, "wait", wrap)


def _wrap_wait(log: CallLog, original: Callable[..., Any]) -> Callable[..., Any]:
    handles, clock, is_compiling = log.handles, log.clock, torch.compiler.is_compiling

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent: Sent | None = None
        if handles and not is_compiling():
            _, sent = handles.pop(id(self), (None, None))
            if self is HERE.work:
                HERE.work = None
        if sent is None:
            return original(self, *args, **kwargs)
        sent.is_waited = True
        start = clock()
        result = original(self, *args, **kwargs)
        compiler = set_eval_frame(None)  # `outside_compiler` and a guard written out
        try:
            log.end_wait(sent, start)
        except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
            report_failure("collective waited for", failure)
        finally:
            set_eval_frame(compiler)
        return result

    skip_code(getattr(wait, "__code__"))  # noqa: B009  # wraps() hides it from mypy
    wait.__qualname__ = wait.__name__  # a builtin's has no module
    return wait


class BufferCalls:
    """Makes rows of the broadcasts of a model's buffers."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._sizes: dict[tuple[int, ...], Message] = {}
        self._groups: weakref.WeakKeyDictionary[Any, Watched | None] = weakref.WeakKeyDictionary()

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sent | None:
        real = args[0] if args else kwargs["process_group"]
        tensors = args[1] if len(args) > 1 else kwargs["tensors"]
        if real not in self._groups:
            self._groups[real] = describe_group(real)
        watched = self._groups[real]
        if watched is None or not tensors:
            return None
        # A large model has hundreds of buffers, so their sizes are added up once.
        first, last = tensors[0], tensors[-1]
        key = id(first), len(tensors), first.numel(), last.numel()
        message = self._sizes.get(key)
        if message is None:
            size = sum(tensor.nbytes for tensor in tensors)
            message = Message(size, str(first.dtype).removeprefix("torch."))
            if len(self._sizes) < MOST_MODELS:
                self._sizes[key] = message
        group = watched.group(first.device.type, "broadcast", 0)
        return self._log.begin(group, "broadcast", message)

    def end(self, sent: Sent) -> None:
        self._log.end(sent, waited=True)


def hook_buffers(patches: Patches, log: CallLog) -> None:
    """Record the broadcast of a model's buffers, with which DDP begins a forward, as one row.

    C++ calls the process group of the model for it, for each part of the buffers.
    """
    calls = BufferCalls(log)
    begin = outside_compiler(guarded("buffers broadcast", calls.begin, None))
    end = outside_compiler(guarded("buffers received", calls.end, None))
    distributed: Any = torch.distributed
    original: Callable[..., Any] = distributed._broadcast_coalesced  # noqa: SLF001  # DDP's

    @functools.wraps(original)
    def broadcast(*args: Any, **kwargs: Any) -> Any:
        if HERE.inside or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        sent = begin(args, kwargs)
        if sent is None:
            return original(*args, **kwargs)
        HERE.inside = True
        try:
            result = original(*args, **kwargs)
        finally:
            HERE.inside = False
        end(sent)
        return result

    skip_code(getattr(broadcast, "__code__"))  # noqa: B009  # as above
    broadcast.__qualname__ = broadcast.__name__  # as above
    patches.replace(distributed, "_broadcast_coalesced", lambda _: broadcast)
