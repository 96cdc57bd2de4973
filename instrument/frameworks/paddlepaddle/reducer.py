"""Time DataParallel's gradient exchange from outside: Paddle's reducer has no hook for it.

The reducer registers a hook on every parameter that it exchanges. We register one before it and
one after it. Between the two the reducer handles that gradient: mostly it does nothing, and for the
last gradient of a group it starts the group's all-reduce. gloo runs the all-reduce there while the
backward waits, so all of it is exposed. NCCL is only launched there; the device's own clock shows
how long the backward's stream has waited for it, at the last gradient.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import paddle
from paddle.base import core

from profkit.clock import Clock, now_ns
from profkit.instrument.buckets import EXPOSED, BucketLog
from profkit.instrument.collectives import Entered, following
from profkit.instrument.frameworks.base import Books
from profkit.instrument.frameworks.paddlepaddle.layout import (
    find_dimension,
    group_of,
    layout_in_use,
)
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder, Span
from profkit.instrument.rows import Event
from profkit.vocab import Phase

BLOCKING = "gloo"
"""The all-reduce of this backend has ended when the call returns."""


@dataclass(frozen=True)
class Group:
    """The gradients that the reducer sends in one message; the size of sparse ones is unknown."""

    members: tuple[int, ...]
    bytes: int | None
    dtype: str


Firing = tuple[int, int, int]
"""One gradient: its parameter, and the times before and after the reducer's hook."""


class Launch(NamedTuple):
    """One group that the reducer has handed to the communication library."""

    group: int
    ready_ns: int
    start_ns: int
    end_ns: int


def replay(groups: Sequence[Sequence[int]], firings: Sequence[Firing]) -> Iterator[Launch]:
    """Yield the groups that the reducer sent: in their order, each when it was complete.

    A parameter without a gradient counts as ready from the first gradient on.
    """
    fired = {parameter for parameter, _, _ in firings}
    owner = {}
    pending = []
    for index, members in enumerate(groups):
        owner.update(dict.fromkeys(members, index))
        pending.append(len(fired.intersection(members)))
    ready = [firings[0][1] if firings else 0] * len(groups)
    following = 0
    for parameter, before, after in firings:
        group = owner[parameter]
        pending[group] -= 1
        ready[group] = before
        while following < len(groups) and not pending[following]:
            yield Launch(following, ready[following], before, after)
            following += 1


class Exchange:
    """The gradient exchange of one reducer. All but `settle` is called for every gradient."""

    def __init__(
        self,
        recorder: Recorder,
        log: BucketLog,
        groups: Sequence[Group],
        *,
        blocking: bool,
        clock: Clock = now_ns,
    ) -> None:
        self._recorder = recorder
        self._log = log
        self._groups = groups
        self._blocking = blocking
        self._clock = clock
        self._armed = False
        self._firings: list[Firing] = []
        self._expected = sum(len(group.members) for group in groups)
        self._before_ns = self._coming = 0
        recorder.in_flight.add(self)
        self._tail: Span | None = None
        self._ready_at: frozenset[int] = frozenset()
        """Which gradients, counted in their order, completed a group in the backward before."""
        self._marks: dict[int, Event | None] = {}
        """Where on the device a group was complete, by the host's time."""

    def arm(self) -> None:
        """Expect gradients: a forward has run whose gradients will be exchanged."""
        self._armed = True
        self._before_ns = 0
        self._firings = []
        self._coming = self._expected

    def before(self) -> None:
        """Note that a gradient is there, before the reducer sees it."""
        if self._armed:
            self._before_ns = self._clock()
            if not self._blocking:
                self._mark_device()

    def _mark_device(self) -> None:
        """Mark where a group is complete, and time the last gradient.

        There, the device's stream waits for all communication.
        """
        self._coming -= 1
        device = self._recorder.device
        if device is None or not self._recorder.recording:
            return
        if len(self._firings) in self._ready_at and self._before_ns not in self._marks:
            self._marks[self._before_ns] = device.mark()
        if not self._coming:
            self._tail = self._recorder.open(Phase.ALLREDUCE, EXPOSED).__enter__()

    def after(self, parameter: int) -> None:
        """Note that the reducer has handled the gradient."""
        if self._armed:
            self._firings.append((parameter, self._before_ns, self._clock()))
            if self._tail is not None:
                self._tail.close()
                self._tail = None

    def entered(self) -> Iterator[Entered]:
        """Yield the groups that were sent in the backward that runs; the last one may not be over.

        A thread that looks from outside calls this.
        """
        firings = list(self._firings)
        began = self._before_ns
        if not self._armed or not began:
            return
        fired = {parameter for parameter, _, _ in firings}
        first = following(self._log.sequence)
        is_inside = not firings or began > firings[-1][2]
        for index, group in enumerate(self._groups):
            done = fired.issuperset(group.members)
            if done or is_inside:
                size = group.bytes or 0
                yield self._log.name(first + index, index, size, group.dtype, began, done=done)
            if not done:
                return

    def settle(self) -> None:
        """Write down what was exchanged in the backward that ended, if it was this reducer's."""
        if not self._armed or not self._firings:
            return
        self._armed = False
        self._expected = len(self._firings)
        launches = list(replay([group.members for group in self._groups], self._firings))
        complete = {launch.ready_ns for launch in launches}
        ready_at = [number for number, firing in enumerate(self._firings) if firing[1] in complete]
        self._ready_at = frozenset(ready_at)
        if self._blocking or self._recorder.device is not None:
            for index, ready, start, end in launches:
                size, dtype = self._groups[index].bytes, self._groups[index].dtype
                if size is not None:
                    self._log.completed(
                        index,
                        size,
                        dtype,
                        ready,
                        start,
                        end,
                        on_device=not self._blocking,
                        mark=self._marks.pop(ready, None),
                    )
        self._recorder.drop_marks(*self._marks.values())
        self._marks.clear()
        if self._blocking:
            self._log.exposed((launch.start_ns, launch.end_ns) for launch in launches)


def hook_data_parallel(
    patches: Patches, books: Books, sequences: defaultdict[str, Iterator[int]]
) -> Callable[[], None]:
    """Time every reducer's exchange; the function that is returned ends a backward.

    Hooks on parameters cannot be removed again. Once the patches are undone, nothing arms them.
    """
    exchanges: weakref.WeakKeyDictionary[Any, Exchange] = weakref.WeakKeyDictionary()
    opened = guarded("reducer", functools.partial(_open_exchange, books, sequences), None)
    arm = guarded("forward of DataParallel", functools.partial(_arm, exchanges), None)

    def wrap_reducer(original: Any) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def make_reducer(*args: Any, **kwargs: Any) -> Any:
            exchange = opened(*args, **kwargs)
            if exchange is None:
                return original(*args, **kwargs)
            before = guarded("gradient", exchange.before, None)
            after = guarded("exchanged gradient", exchange.after, None)
            register(args[0], lambda index: before)
            reducer = original(*args, **kwargs)
            register(args[0], lambda index: functools.partial(after, index))
            exchanges[reducer] = exchange
            return reducer

        return make_reducer

    def wrap_forward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = original(self, *args, **kwargs)
            arm(self)
            return outputs

        return forward

    register = guarded("hook on a parameter", _register, None)
    patches.replace(core, "EagerReducer", wrap_reducer)
    patches.replace(paddle.DataParallel, "forward", wrap_forward)
    return guarded("end of backward", functools.partial(_settle, exchanges), None)


def _register(parameters: Iterable[Any], hook: Callable[[int], Callable[[], None]]) -> None:
    """Register the only kind of hook that runs when the gradient is stored."""
    for index, parameter in enumerate(parameters):
        parameter._register_backward_hook(hook(index))  # noqa: SLF001  # it has no public name


def _arm(exchanges: weakref.WeakKeyDictionary[Any, Exchange], module: Any) -> None:
    """Expect an exchange in the next backward, unless the forward was not to synchronize."""
    reducer = getattr(module, "_reducer", None)
    exchange = None if reducer is None else exchanges.get(reducer)
    if exchange is not None and module.grad_need_sync and paddle.is_grad_enabled():
        exchange.arm()


def _settle(exchanges: weakref.WeakKeyDictionary[Any, Exchange]) -> None:
    for exchange in list(exchanges.values()):
        exchange.settle()


def _open_exchange(
    books: Books,
    sequences: defaultdict[str, Iterator[int]],
    parameters: Any,
    groups: Any,
    is_sparse: Any,
    process_group: Any,
    *limits: Any,
) -> Exchange:
    """Return the exchange of a reducer that is about to be made with these arguments."""
    recorder = books.recorder
    backend = str(process_group.name()).lower()
    group = group_of(process_group)
    name = "default" if group is None else str(group.name)
    log = BucketLog(
        recorder,
        books.collectives,
        name,
        int(process_group.size()),
        backend,
        sequence=sequences[name],
        clock=recorder.clock,
        dimension=find_dimension(layout_in_use(), group),
    )
    described = [_describe(parameters, is_sparse, members) for members in groups]
    blocking = backend == BLOCKING
    return Exchange(recorder, log, described, blocking=blocking, clock=recorder.clock)


def _describe(parameters: Any, is_sparse: Any, members: Sequence[int]) -> Group:
    """Return the group of gradients with these numbers."""
    size: int | None = 0
    for member in members:
        parameter = parameters[member]
        if is_sparse[member] or size is None:
            size = None
        else:
            size += int(parameter.size) * int(parameter.element_size())
    dtype = str(parameters[members[0]].dtype).removeprefix("paddle.")
    return Group(tuple(members), size, dtype)
