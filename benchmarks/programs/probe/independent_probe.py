"""Count optimizer steps, batches and samples, and time phases, without profkit.

It knows nothing of profkit and hooks other places: optimizers' step hooks, `Tensor.backward`, and
the `collate_fn` that a loader is given. Each process appends lines to a file of its own in the
folder `PROBE_OUT`, so that a process that is killed loses nothing.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

_COUNT_LOCK = threading.Lock()
_LOADERS = [0]
_FILES: dict[int, Events] = {}


class Events:
    """A file of events in mapped memory, whose end is filled with zero bytes.

    A system call would release the interpreter lock within the phases that profkit times, and
    a loader's thread could hold it for milliseconds, which the probe's own times do not include.
    """

    def __init__(self, process: int) -> None:
        path = os.path.join(os.environ["PROBE_OUT"], f"{process}.jsonl")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        os.truncate(descriptor, 1 << 20)
        self._memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self._end = 0
        self._lock = threading.Lock()

    def append(self, line: bytes) -> None:
        with self._lock:
            start, self._end = self._end, self._end + len(line)
            while self._end > len(self._memory):
                self._memory.resize(2 * len(self._memory))
            self._memory[start : self._end] = line


def write(kind: str, *fields: object) -> None:
    """Append one event; a forked child has a file of its own."""
    process = os.getpid()
    if process not in _FILES:
        _FILES.setdefault(process, Events(process))  # two threads may be here
    _FILES[process].append((json.dumps([kind, *fields]) + "\n").encode())


class Finder:
    """Installs the probe's hooks right after a framework has been imported."""

    def __init__(self) -> None:
        self._waiting = {"torch": hook_torch, "paddle": hook_paddle}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._waiting or name in sys.modules:
            return None
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in finders:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._follow(name, spec.loader)
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        original = loader.exec_module

        def execute(module: ModuleType) -> None:
            original(module)
            install = self._waiting.pop(name, None)
            if install is not None:
                install(module)

        loader.exec_module = execute


def arm() -> None:
    sys.meta_path.insert(0, Finder())


class Nesting(threading.local):
    """The outermost of nested calls is the one that counts."""

    depth = 0


class Starts(threading.local):
    """When the optimizer steps that are under way began."""

    def __init__(self) -> None:
        self.open: list[int] = []


def timed(kind: str, original: Callable[..., Any], value: Callable[..., Any]) -> Any:
    """Wrap a function so that its outermost call is an event with its times."""
    nesting = Nesting()

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if nesting.depth:
            return original(*args, **kwargs)
        nesting.depth += 1
        start = time.perf_counter_ns()
        try:
            result = original(*args, **kwargs)
        except StopIteration:  # a loader's last wait is for its workers to end
            write("exhausted", start, time.perf_counter_ns(), value(*args, **kwargs))
            raise
        finally:
            nesting.depth -= 1
        write(kind, start, time.perf_counter_ns(), value(*args, **kwargs))
        return result

    return call


def _loss(tensor: Any, *args: Any, **kwargs: Any) -> str | None:
    """Return the bits of a loss, as text."""
    try:
        return float(tensor).hex()
    except (TypeError, ValueError, RuntimeError):
        return None


class Collate:
    """A loader's `collate_fn` that counts the samples which it is given."""

    def __init__(self, original: Callable[[Any], Any], loader: int, *, batches: bool) -> None:
        self.original, self.loader, self.owner = original, loader, os.getpid()
        self.batches = batches

    def __call__(self, samples: Any) -> Any:
        write("collate", self.loader, self.owner, len(samples) if self.batches else None)
        return self.original(samples)


def hook_torch(torch: ModuleType) -> None:
    """Hook optimizers, backward and loaders of torch."""
    from torch.optim import optimizer as optimizers

    starts = Starts()

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        starts.open.append(time.perf_counter_ns())

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        write("step", starts.open.pop(), time.perf_counter_ns(), id(optimizer))

    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    scaler = torch.amp.GradScaler
    scaler.step = timed("scaler", scaler.step, lambda *args, **kwargs: None)
    torch.Tensor.backward = timed("backward", torch.Tensor.backward, _loss)
    data = torch.utils.data
    _hook_loader(data.DataLoader)
    iterator = data.dataloader._BaseDataLoaderIter  # noqa: SLF001  # it has no public name
    iterator.__next__ = timed("data", iterator.__next__, lambda self: getattr(self, "_probe", None))
    original = iterator.__init__

    @functools.wraps(original)
    def begin(self: Any, loader: Any) -> None:
        self._probe = getattr(loader.collate_fn, "loader", None)
        original(self, loader)

    iterator.__init__ = begin


def _hook_loader(loader_type: Any) -> None:
    original = loader_type.__init__

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = self.collate_fn
        if isinstance(given, Collate):  # a loader that a trainer has made of another one
            given = given.original
        with _COUNT_LOCK:
            _LOADERS[0] += 1
        collate = Collate(given, _LOADERS[0], batches=self.batch_sampler is not None)
        # Some subclasses of DataLoader refuse assignments.
        object.__setattr__(self, "collate_fn", collate)

    loader_type.__init__ = make
    own_number = lambda self: getattr(self.collate_fn, "loader", None)  # noqa: E731
    loader_type.__iter__ = timed("open", loader_type.__iter__, own_number)


def hook_paddle(paddle: ModuleType) -> None:
    """Hook optimizers, backward, batch samplers and loaders of Paddle."""
    optimizer = paddle.optimizer.Optimizer
    for kind in (optimizer, *_subclasses(optimizer)):
        if "step" in vars(kind):
            kind.step = timed("step", kind.step, lambda self, *args, **kwargs: id(self))
        if "minimize" in vars(kind):  # as `paddle.Model` calls, with no `step`
            kind.minimize = timed("step", kind.minimize, lambda self, *args, **kwargs: id(self))
    paddle.Tensor.backward = timed("backward", paddle.Tensor.backward, _loss)
    sampler = paddle.io.BatchSampler
    for kind in (sampler, *_subclasses(sampler)):
        if "__iter__" in vars(kind):
            kind.__iter__ = _counted(kind.__iter__)
    from paddle.io.dataloader import dataloader_iter as iterators

    for name in ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess"):
        iterator = getattr(iterators, name)
        iterator.__next__ = timed("data", iterator.__next__, lambda self: id(self._batch_sampler))
    loader = paddle.io.DataLoader
    loader.__iter__ = timed("open", loader.__iter__, lambda self: id(self.batch_sampler))


def _subclasses(kind: Any) -> list[Any]:
    found: list[Any] = []
    for each in kind.__subclasses__():
        found += [each, *_subclasses(each)]
    return found


def _counted(original: Callable[[Any], Any]) -> Any:
    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        for batch in original(self):
            write("collate", id(self), os.getpid(), len(batch))
            yield batch

    return iterate
