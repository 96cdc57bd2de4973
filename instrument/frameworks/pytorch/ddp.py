"""Time DistributedDataParallel's gradient buckets without a communication hook of our own.

DDP accepts one communication hook and keeps it in the module, where copies and pickles meet it. A
hook also takes over the averaging of gradients, so `join` and sparse gradients would depend on our
arithmetic. Therefore profkit registers none. Each reducer is built with a process group that passes
every call on to the real one and notes when a bucket is sent and received. A hook that the job
registers stays the job's own; only the reducer's reference to it is timed.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from profkit.instrument.buckets import COMPLETES_WHEN_DONE, Bucket, BucketLog
from profkit.instrument.collectives import HERE
from profkit.instrument.frameworks.base import Books, note_unmeasured
from profkit.instrument.frameworks.pytorch.compiler import outside_compiler, skip_code
from profkit.instrument.frameworks.pytorch.groups import communicator_of, ranks_of
from profkit.instrument.frameworks.pytorch.layout import LAYOUT
from profkit.instrument.frameworks.pytorch.observed_group import ObservedGroup, size_of
from profkit.instrument.frameworks.shared import call_first
from profkit.instrument.guard import Patches, guarded, report_failure
from profkit.instrument.sent import Part, name_group

Hook = Callable[[Any, Any], Any]

OBSERVED_BACKENDS = frozenset({"gloo", "nccl"})
"""Backends whose process groups are known to work when they are shared with a second group."""


def hook_ddp(
    patches: Patches, books: Books, sequences: defaultdict[str, Iterator[int]]
) -> Exchanges:
    """Time the buckets of every reducer built from now on."""
    exchanges = Exchanges(books, sequences)
    distributed: Any = torch.distributed
    if distributed.is_available():
        patches.replace(distributed.Reducer, "__init__", exchanges.wrap_reducer)
        wrap = functools.lru_cache(exchanges.wrap_registration)
        for owner in (distributed, torch._C._distributed_c10d):  # noqa: SLF001  # its true home
            patches.replace(owner, "_register_comm_hook", wrap)
        if distributed.is_initialized():
            _watch_earlier_modules(patches, exchanges)
    return exchanges


class Exchanges:
    """The bucket logs of the reducers that exist."""

    def __init__(self, books: Books, sequences: defaultdict[str, Iterator[int]]) -> None:
        self._books = books
        self._sequences = sequences
        self.groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._logs: tuple[BucketLog, ...] = ()
        self._said: set[str] = set()
        self._observe = guarded("gradient exchange", self._observe_group, None)

    def wrap_reducer(self, original: Callable[..., None]) -> Callable[..., None]:
        """Build reducers with an observed process group in place of the real one."""

        @functools.wraps(original)
        def build(reducer: Any, *args: Any, **kwargs: Any) -> None:
            observed = self._observe(args, kwargs)
            if observed is None:
                original(reducer, *args, **kwargs)
                return
            group, args_observed, kwargs_observed = observed
            original(reducer, *args_observed, **kwargs_observed)
            self.groups[reducer] = group
            self._logs += (group.log,)
            weakref.finalize(reducer, self._forget, group.log).atexit = False

        return build

    def wrap_registration(self, original: Callable[..., None]) -> Callable[..., None]:
        """Time the job's own communication hook where the reducer calls it."""

        @functools.wraps(original)
        def _register_comm_hook(reducer: Any, state: object, comm_hook: Hook) -> None:
            group = self.groups.get(reducer)
            if group:
                follows, sequences = group.follows, self._sequences
                comm_hook = _timed_hook(comm_hook, group.log, sequences, follows=follows)
            original(reducer, state, comm_hook)

        _register_comm_hook.__qualname__ = _register_comm_hook.__name__  # a builtin's has no module
        return _register_comm_hook

    def end_of_backward(self) -> None:
        """Complete the buckets of the backward that has just returned."""
        for log in self._logs:
            try:
                log.end_of_backward()
            except Exception as failure:  # noqa: BLE001  # must not stop the job (inlined guard)
                report_failure("end_of_backward", failure)

    def say_unmeasured(self, why: str) -> None:
        """Record, once, what of the exchange is not measured."""
        if why not in self._said:
            self._said.add(why)
            note_unmeasured(self._books, why)

    def _observe_group(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        """Return the observed group, and the reducer's arguments with it put in."""
        real = kwargs["process_group"] if "process_group" in kwargs else args[_GROUP_ARGUMENT]
        backends = _backends(real)
        if not OBSERVED_BACKENDS.issuperset(backends.values()):
            names = ", ".join(sorted(set(backends.values()))) or "an unknown backend"
            if "nccl2" in backends.values():
                names += " (TORCH_DIST_USE_NCCL2=0 selects a backend whose exchange is timed)"
            self.say_unmeasured(f"gradient exchange over {names}")
            return None
        parameters = kwargs["params"] if "params" in kwargs else args[0]
        backend = backends[parameters[0].device.type]
        recorder, collectives = self._books.recorder, self._books.collectives
        # Modules that share a communicator number its collectives together.
        name = communicator_of(real, ranks_of(real))
        sequence = self._sequences[name]
        log = BucketLog(
            recorder,
            collectives,
            name,
            real.size(),
            backend,
            sequence=sequence,
            clock=recorder.clock,
            unmeasured=self.say_unmeasured,
            dimension=LAYOUT.dimensions.get(name_group(name)) or None,
        )
        follows = backend in COMPLETES_WHEN_DONE or not has_one_queue()
        if not follows:
            self.say_unmeasured("the end of each bucket, with CUDA_DEVICE_MAX_CONNECTIONS=1")
        group = ObservedGroup(real, log, recorder, follows=follows)
        if "process_group" in kwargs:
            return group, args, {**kwargs, "process_group": group}
        return group, (*args[:_GROUP_ARGUMENT], group, *args[_GROUP_ARGUMENT + 1 :]), kwargs

    def _forget(self, log: BucketLog) -> None:
        """Leave out the log of a reducer that is gone."""
        self._logs = tuple(each for each in self._logs if each is not log)


_GROUP_ARGUMENT = 3
"""The process group's place among the arguments of `Reducer`."""


def _backends(group: Any) -> dict[str, str]:
    """Return the name of the backend for each kind of device."""
    backends = {}
    for device in group._device_types:  # noqa: SLF001  # torch has no public name for it
        backend = group._get_backend(device)  # noqa: SLF001  # the same
        backends[device.type] = backend.name().lower()
    return backends


def has_one_queue() -> bool:
    """Return true if all streams of a device share one hardware queue.

    Then an event behind a collective holds up the computation that is launched after it.
    """
    return os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"


def _timed_hook(
    hook: Hook, log: BucketLog, sequences: Mapping[str, Iterator[int]], *, follows: bool
) -> Hook:
    """Time the job's hook: its arguments and its future are passed on unchanged.

    The message of a bucket is what the hook sends, which may be compressed, or nothing.
    """
    sees_all = hasattr(torch.distributed.ProcessGroup, "register_pre_hook")

    def begin_unguarded(bucket: Any) -> Bucket:
        buffer = bucket.buffer()
        dtype = str(buffer.dtype).removeprefix("torch.")
        return log.launched(bucket.index(), size_of(buffer), dtype)

    def follow_unguarded(future: Any, bucket: Bucket) -> None:
        future.add_done_callback(lambda _: done(bucket))

    begin = outside_compiler(guarded("bucket launched", begin_unguarded, None))
    follow = outside_compiler(guarded("bucket followed", follow_unguarded, None))
    done = guarded("bucket done", log.done, None)
    describe = outside_compiler(guarded("bucket described", log.describe, None))
    drop = outside_compiler(guarded("bucket dropped", log.drop, None))

    @functools.wraps(hook)
    def timed(state: Any, bucket: Any) -> Any:
        opened = begin(bucket)
        before, parts = HERE.inside, list[Part]()
        # Collectives called inside belong to this bucket.
        HERE.inside, HERE.sent_ns, HERE.parts = True, 0, parts
        try:
            future = hook(state, bucket)
        finally:
            HERE.inside, HERE.parts = before, None
        if opened is None:
            return future
        # A hook may average or compress the gradients before it sends them.
        opened.start_ns = HERE.sent_ns or opened.start_ns
        if parts:
            describe(opened, parts, sequences)
        elif sees_all and not HERE.sent_ns:
            drop(opened)  # for example, of a hook that averages weights now and then
            return future
        if follows:
            follow(future, opened)
        return future

    skip_code(getattr(timed, "__code__"))  # noqa: B009  # wraps() hides it from mypy
    return timed


def _watch_earlier_modules(patches: Patches, exchanges: Exchanges) -> None:
    """Report if a module trains that was wrapped before profkit started: it is not observed."""
    from torch.nn.parallel import DistributedDataParallel

    def note(module: Any) -> None:
        if module.reducer not in exchanges.groups and torch.is_grad_enabled():
            exchanges.say_unmeasured("gradient exchange of a model wrapped before profkit started")

    look = guarded("earlier module", note, None)

    patches.replace(DistributedDataParallel, "forward", call_first(look))
