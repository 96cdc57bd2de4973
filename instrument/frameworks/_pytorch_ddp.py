"""DistributedDataParallel's buckets, through its communication hook."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from profkit.instrument.buckets import Bucket, BucketLog
from profkit.instrument.collectives import QUIET
from profkit.instrument.frameworks._base import Books
from profkit.instrument.guard import Patches, guarded

Hook = Callable[[Any, Any], Any]


def hook_ddp(patches: Patches, books: Books, sequences: defaultdict[str, Iterator[int]] | None = None) -> Exchanges:
    """Time every bucket; what is returned is to be told when a backward has ended.

    DDP takes one communication hook. Where the job registers its own, that one is timed; else ours,
    which does what DDP does without a hook, is registered when the first forward comes.
    """
    logs = Exchanges()
    open_log = guarded("BucketLog", functools.partial(_open_log, books, defaultdict(itertools.count) if sequences is None else sequences), None)

    def wrap_register(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register_comm_hook(self: Any, state: object, hook: Hook) -> Any:
            log = open_log(self)
            logs.keep(self, log)
            return original(self, state, _timed_hook(hook, log) if log else hook)

        return register_comm_hook

    def wrap_builtin(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _register_builtin_comm_hook(self: Any, kind: Any) -> Any:
            logs.keep(self, None)
            return original(self, kind)

        return _register_builtin_comm_hook

    def wrap_forward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self not in logs.of_modules and torch.is_grad_enabled():
                register(self)
            return original(self, *args, **kwargs)

        return forward

    def register_ours(module: Any) -> None:
        logs.keep(module, None)
        module.register_comm_hook(module.process_group, _average)

    register = guarded("register_comm_hook", register_ours, None)
    patches.replace(DistributedDataParallel, "register_comm_hook", wrap_register)
    patches.replace(DistributedDataParallel, "_register_builtin_comm_hook", wrap_builtin)
    patches.replace(DistributedDataParallel, "forward", wrap_forward)
    return logs


class Exchanges:
    """The logs of the modules there are."""

    def __init__(self) -> None:
        self.of_modules: weakref.WeakKeyDictionary[Any, BucketLog | None] = weakref.WeakKeyDictionary()
        self.used = False
        self._settle = guarded("end_of_backward", self._settle_all, None)

    def keep(self, module: Any, log: BucketLog | None) -> None:
        self.of_modules[module] = log
        self.used = True

    def end_of_backward(self) -> None:
        """A job that exchanges nothing pays for one look."""
        if self.used:
            self._settle()

    def _settle_all(self) -> None:
        for log in list(self.of_modules.values()):
            if log is not None:
                log.end_of_backward()


def _open_log(books: Books, sequences: defaultdict[str, Iterator[int]], module: Any) -> BucketLog:
    """The log for a module's buckets. Modules that share a communicator count its collectives together."""
    group = module.process_group
    name = str(getattr(group, "group_name", "") or "default")
    return BucketLog(books.recorder, books.collectives, name, group.size(), str(torch.distributed.get_backend(group)), sequence=sequences[name])


def _timed_hook(hook: Hook, log: BucketLog) -> Hook:
    """`hook` with its bucket's times taken; its future is handed on with the value that it has."""
    launched = guarded("bucket launched", log.launched, None)
    done = guarded("bucket done", log.done, None)

    @functools.wraps(hook)
    def timed(state: Any, bucket: Any) -> Any:
        known = guarded("bucket size", _describe, None)(bucket)
        opened = launched(*known) if known else None
        QUIET.inside, before, QUIET.sent_ns = True, QUIET.inside, 0  # what it calls is this bucket's exchange
        try:
            future = hook(state, bucket)
        finally:
            QUIET.inside = before
        if opened is None:
            return future
        begun = replace(opened, start_ns=QUIET.sent_ns or opened.start_ns)  # gradients are averaged, or made small, before they are sent
        return _note_when_done(future, begun, done)

    return timed


def _note_when_done(future: Any, bucket: Bucket, done: Callable[[Bucket], None]) -> Any:
    """The future that DDP waits for: it takes the time, then has the hook's own value."""

    def pass_on(finished: Any) -> Any:
        done(bucket)
        return finished.value()

    return future.then(pass_on)


def _describe(bucket: Any) -> tuple[int, int, str]:
    buffer = bucket.buffer()
    return bucket.index(), buffer.numel() * buffer.element_size(), str(buffer.dtype).removeprefix("torch.")


def _average(group: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook, to the bit: gradients times 1/n, then their sum."""
    buffer = bucket.buffer().mul_(1.0 / group.size())
    work = torch.distributed.all_reduce(buffer, group=group, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


_average.__annotations__ = {}  # DDP compares annotations with its own classes, and those of this file are text
