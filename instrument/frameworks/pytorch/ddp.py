"""Time DistributedDataParallel's gradient buckets without a communication hook of our own.

DDP accepts one communication hook and keeps it in the module, where copies and pickles meet it. A hook
also takes over the averaging of gradients, so `join` and sparse gradients would depend on our arithmetic.
Therefore profkit registers none. Each reducer is built with a process group that passes every call on to
the real one and notes when a bucket is sent and received. A hook that the job registers stays the job's
own; only the reducer's reference to it is timed.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from profkit.instrument.buckets import Bucket, BucketLog
from profkit.instrument.collectives import QUIET
from profkit.instrument.frameworks.base import Books, note_unmeasured
from profkit.instrument.frameworks.pytorch.compiler import outside_compiler, skip_code
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder

Hook = Callable[[Any, Any], Any]

OBSERVED_BACKENDS = frozenset({"gloo", "nccl"})
"""Backends whose process groups are known to work when they are shared with a second group."""


def hook_ddp(
    patches: Patches, books: Books, sequences: defaultdict[str, Iterator[int]] | None = None
) -> Exchanges:
    """Time the buckets of every reducer built from now on."""
    exchanges = Exchanges(books, defaultdict(itertools.count) if sequences is None else sequences)
    distributed: Any = torch.distributed
    if distributed.is_available():
        patches.replace(distributed.Reducer, "__init__", exchanges.wrap_reducer)
        wrap = functools.lru_cache(exchanges.wrap_registration)
        for owner in (distributed, torch._C._distributed_c10d):  # noqa: SLF001  # where its name says it is
            patches.replace(owner, "_register_comm_hook", wrap)
        if distributed.is_initialized():
            _watch_earlier_modules(patches, exchanges)
    return exchanges


SMALL_BYTES = 262_144
"""Up to this size, copying a bucket into the gradients takes less than a callback from another thread.

That thread needs the interpreter at the moment at which the backward returns to Python: 0.1 ms per step."""


class Exchanges:
    """The bucket logs of the reducers that exist."""

    def __init__(self, books: Books, sequences: defaultdict[str, Iterator[int]]) -> None:
        self._books = books
        self._sequences = sequences
        self.groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.used = False
        self._said: set[str] = set()
        self._observe = guarded("gradient exchange", self._observe_group, None)
        self._settle = guarded("end_of_backward", self._settle_all, None)

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
            self.used = True

        return build

    def wrap_registration(self, original: Callable[..., None]) -> Callable[..., None]:
        """Time the job's own communication hook where the reducer calls it."""

        @functools.wraps(original)
        def _register_comm_hook(reducer: Any, state: object, comm_hook: Hook) -> None:
            group = self.groups.get(reducer)
            original(reducer, state, _timed_hook(comm_hook, group.log) if group else comm_hook)

        _register_comm_hook.__qualname__ = _register_comm_hook.__name__  # a builtin's has no module
        return _register_comm_hook

    def end_of_backward(self) -> None:
        """Settle the buckets of the backward that has just returned."""
        if self.used:
            self._settle()

    def say_unmeasured(self, why: str) -> None:
        """Record, once, what of the exchange is not measured."""
        if why not in self._said:
            self._said.add(why)
            note_unmeasured(self._books, why)

    def _observe_group(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        """Return the observed group, and the reducer's arguments with it in place of the real one."""
        real = kwargs["process_group"] if "process_group" in kwargs else args[_GROUP_ARGUMENT]
        backends = _backends(real)
        if not OBSERVED_BACKENDS.issuperset(backends.values()):
            names = ", ".join(sorted(set(backends.values())))
            self.say_unmeasured(f"gradient exchange over {names or 'an unknown backend'}")
            return None
        parameters = kwargs["params"] if "params" in kwargs else args[0]
        log = self._open_log(real, backends[parameters[0].device.type])
        group = ObservedGroup(real, log, self._books.recorder)
        if "process_group" in kwargs:
            return group, args, {**kwargs, "process_group": group}
        return group, (*args[:_GROUP_ARGUMENT], group, *args[_GROUP_ARGUMENT + 1 :]), kwargs

    def _open_log(self, group: Any, backend: str) -> BucketLog:
        """Open a log; modules that share a communicator number its collectives together."""
        books = self._books
        name = str(getattr(group, "group_name", "") or "default")
        sequence = self._sequences[name]
        return BucketLog(
            books.recorder, books.collectives, name, group.size(), backend, sequence=sequence
        )

    def _settle_all(self) -> None:
        for group in list(self.groups.values()):
            group.log.end_of_backward()


_GROUP_ARGUMENT = 3
"""The process group's place among the arguments of `Reducer`."""


def _backends(group: Any) -> dict[str, str]:
    """Return the name of the backend for each kind of device."""
    devices = group._device_types  # noqa: SLF001  # torch has no public name for it
    return {device.type: group._get_backend(device).name().lower() for device in devices}  # noqa: SLF001  # the same


_ProcessGroup: Any = getattr(torch.distributed, "ProcessGroup", object)
"""The base of process groups; torch can be built without them."""


class ObservedGroup(_ProcessGroup):  # type: ignore[misc]  # see above
    """A process group on the backends of another one, which times the reducer's buckets.

    Collectives are handed to the real group. Everything else that torch asks a process group for,
    from C++ as well, is answered by the backends that both groups share.

    Every collective that a reducer calls must be a method here. For one that is not, torch runs its own
    while it holds the interpreter, and gloo's threads need the interpreter to release tensors: a deadlock.
    """

    def __init__(self, real: Any, log: BucketLog, recorder: Recorder) -> None:
        super().__init__(real.rank(), real.size())
        self.bound_device_id = real.bound_device_id  # registering a backend sets it there, too
        for device in real._device_types:  # noqa: SLF001  # torch has no public name for it
            self._share_backend(device, real._get_backend(device))  # noqa: SLF001  # the same
        self.log = log
        self._real = real
        self._recorder = recorder
        self._expected = 0
        self._known: list[tuple[int, Any, tuple[int, str]]] = []
        self._begin = guarded("bucket launched", self._begin_bucket, None)
        self._follow = guarded("bucket followed", self._follow_bucket, None)

    def _share_backend(self, device: Any, backend: Any) -> None:
        kinds = _ProcessGroup.BackendType
        kind = getattr(kinds, backend.name().upper(), kinds.CUSTOM)
        self._register_backend(device, kind, backend)
        if hasattr(_ProcessGroup, "_set_default_backend"):  # later than torch 2.4
            self._set_default_backend(kind)

    @outside_compiler
    def getBackendName(self) -> str:  # noqa: N802  # the name that torch calls
        return str(self._real.name())

    @outside_compiler
    def broadcast(self, tensors: Any, opts: Any) -> Any:
        return self._real.broadcast(tensors, opts)

    @outside_compiler
    def barrier(self, opts: Any) -> Any:
        return self._real.barrier(opts)

    @outside_compiler
    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        return self._real.allgather(outputs, inputs, opts)

    @outside_compiler
    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        return self._real.allreduce_coalesced(tensors, opts)

    @outside_compiler
    def allreduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce as the real group does; what is reduced here is a bucket of gradients."""
        bucket = self._begin(tensors[0])
        work = self._real.allreduce(tensors, opts)
        if bucket is not None and not self._ends_with_backward(bucket):
            self._follow(work, bucket)
        return work

    def _ends_with_backward(self, bucket: Bucket) -> bool:
        """Return true for a last bucket so small that the backward's end is its own."""
        if bucket.bytes > SMALL_BYTES or self._recorder.device is not None:
            return False
        return bucket.index + 1 == self._expected

    def _begin_bucket(self, tensor: torch.Tensor) -> Bucket | None:
        """Note a bucket; `None` for the map of used parameters, which holds integers."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return None
        if not self._recorder.recording:
            self.log.skipped()
            return None
        index = self.log.pending
        if not index:
            self._expected = len(self._known)
        return self.log.launched(index, *self._describe(index, tensor))

    def _describe(self, index: int, tensor: torch.Tensor) -> tuple[int, str]:
        """Return the bucket's bytes and type, which mostly are those of the backward before."""
        if index < len(self._known) and not tensor.is_sparse:
            count, dtype, described = self._known[index]
            if tensor.numel() == count and tensor.dtype is dtype:
                return described
        described = _size_of(tensor), str(tensor.dtype).removeprefix("torch.")
        del self._known[index:]
        self._known.append((tensor.numel(), tensor.dtype, described))
        return described

    def _follow_bucket(self, work: Any, bucket: Bucket) -> None:
        """Take the time when the collective has its result; nobody waits for that call."""
        done = self.log.done
        work.get_future().add_done_callback(lambda _: done(bucket))


def _size_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a bucket sends; a sparse one sends this rank's values."""
    if not tensor.is_sparse:
        return tensor.numel() * tensor.element_size()
    values = tensor._values()  # noqa: SLF001  # the public name needs the gradient coalesced
    return values.numel() * values.element_size()


def _timed_hook(hook: Hook, log: BucketLog) -> Hook:
    """Time the job's hook. It is called with what DDP gives, and its future is handed on as it is."""
    begin = outside_compiler(guarded("bucket launched", functools.partial(_begin, log), None))
    follow = outside_compiler(guarded("bucket followed", _follow_future, None))
    done = guarded("bucket done", log.done, None)

    @functools.wraps(hook)
    def timed(state: Any, bucket: Any) -> Any:
        opened = begin(bucket)
        before = QUIET.inside
        QUIET.inside, QUIET.sent_ns = True, 0  # collectives called inside belong to this bucket
        try:
            future = hook(state, bucket)
        finally:
            QUIET.inside = before
        if opened is not None:
            # A hook may average or compress the gradients before it sends them.
            opened.start_ns = QUIET.sent_ns or opened.start_ns
            follow(future, opened, done)
        return future

    skip_code(getattr(timed, "__code__"))  # noqa: B009  # wraps() hides it from mypy
    return timed


def _follow_future(future: Any, bucket: Bucket, done: Callable[[Bucket], None]) -> None:
    future.add_done_callback(lambda _: done(bucket))


def _begin(log: BucketLog, bucket: Any) -> Bucket:
    buffer = bucket.buffer()
    dtype = str(buffer.dtype).removeprefix("torch.")
    return log.launched(bucket.index(), _size_of(buffer), dtype)


def _watch_earlier_modules(patches: Patches, exchanges: Exchanges) -> None:
    """Say so if a module trains that was wrapped before profkit started; it cannot be observed."""
    from torch.nn.parallel import DistributedDataParallel

    def note(module: Any) -> None:
        if module.reducer not in exchanges.groups and torch.is_grad_enabled():
            exchanges.say_unmeasured("gradient exchange of a model wrapped before profkit started")

    look = guarded("earlier module", note, None)

    def wrap_forward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            look(self)
            return original(self, *args, **kwargs)

        return forward

    patches.replace(DistributedDataParallel, "forward", wrap_forward)
