"""DataParallel's gradient exchange, from outside: Paddle's reducer has no hook for its communication.

The reducer hangs a hook on every parameter that it exchanges. One of ours before it and one after it bracket what the
reducer does when that gradient is there: mostly nothing, and where it was the last one of a group of gradients, the
group's all-reduce. gloo runs it inside the bracket, and the backward waits meanwhile, so all of it is exposed. NCCL is
only launched there; the device's own clock tells when the backward's stream has waited for it, at the last gradient.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import paddle
from paddle.base import core

from profkit.clock import Clock, now_ns
from profkit.instrument.buckets import EXPOSED, BucketLog
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.spans import Span
from profkit.vocab import Phase

BLOCKING = "gloo"
"""The backend whose all-reduce has ended when the call returns."""


@dataclass(frozen=True)
class Group:
    """The gradients that the reducer sends in one message; `bytes` is unknown where they are sparse."""

    members: tuple[int, ...]
    bytes: int | None
    dtype: str


Firing = tuple[int, int, int]
"""One gradient is there: its parameter, and the times before and after the reducer's hook."""


class Launch(NamedTuple):
    """One group that the reducer has handed to the communication library."""

    group: int
    ready_ns: int
    start_ns: int
    end_ns: int


def replay(groups: Sequence[Sequence[int]], firings: Sequence[Firing]) -> Iterator[Launch]:
    """What the reducer did at each gradient: it sends groups in their order, each when all its gradients are there.

    A parameter that no gradient came for counts as ready from the first gradient on.
    """
    fired = {parameter for parameter, _, _ in firings}
    owner = {parameter: index for index, members in enumerate(groups) for parameter in members}
    pending = [len(fired.intersection(members)) for members in groups]
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
        self._tail: Span | None = None

    def arm(self) -> None:
        """A forward has run whose gradients will be exchanged."""
        self._armed = True
        self._firings = []
        self._coming = self._expected

    def before(self) -> None:
        """A gradient is there, and the reducer has not seen it."""
        if self._armed:
            self._before_ns = self._clock()
            if not self._blocking:
                self._open_tail()

    def _open_tail(self) -> None:
        """At the last gradient, the device's stream waits for all that is under way."""
        self._coming -= 1
        if not self._coming and self._recorder.device is not None and self._recorder.recording:
            self._tail = self._recorder.open(Phase.ALLREDUCE, EXPOSED).__enter__()

    def after(self, parameter: int) -> None:
        """The reducer has done with the gradient what it does."""
        if self._armed:
            self._firings.append((parameter, self._before_ns, self._clock()))
            if self._tail is not None:
                self._tail.close()
                self._tail = None

    def settle(self) -> None:
        """A backward has ended: write down what was exchanged in it, if it was this reducer's."""
        if not self._armed or not self._firings:
            return
        self._armed = False
        self._expected = len(self._firings)
        launches = list(replay([group.members for group in self._groups], self._firings))
        if self._blocking or self._recorder.device is not None:
            self._note(launches)
        if self._blocking:
            self._log.exposed((launch.start_ns, launch.end_ns) for launch in launches)

    def _note(self, launches: Iterable[Launch]) -> None:
        for index, ready, start, end in launches:
            group = self._groups[index]
            if group.bytes is not None:
                self._log.completed(
                    index, group.bytes, group.dtype, ready, start, end, on_device=not self._blocking
                )


def hook_data_parallel(
    patches: Patches, books: Books, sequences: defaultdict[str, Iterator[int]] | None = None
) -> Callable[[], None]:
    """Time what every reducer exchanges; what is returned is to be called when a backward has ended.

    Hooks on parameters cannot be taken off again; once the patches are taken back, nothing arms them.
    """
    exchanges: weakref.WeakKeyDictionary[Any, Exchange] = weakref.WeakKeyDictionary()
    sequences = defaultdict(itertools.count) if sequences is None else sequences
    opened = guarded("reducer", functools.partial(_open_exchange, books, sequences), None)
    arm = guarded("forward of DataParallel", functools.partial(_arm, exchanges), None)

    def wrap_reducer(original: Any) -> Callable[..., Any]:
        @functools.wraps(original, updated=())
        def make_reducer(*args: Any, **kwargs: Any) -> Any:
            exchange = opened(*args, **kwargs)
            if exchange is None:
                return original(*args, **kwargs)
            before, after = (
                guarded("gradient", exchange.before, None),
                guarded("exchanged gradient", exchange.after, None),
            )
            hang(args[0], lambda index: before)
            reducer = original(*args, **kwargs)
            hang(args[0], lambda index: functools.partial(after, index))
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

    hang = guarded("hook on a parameter", _hang, None)
    patches.replace(core, "EagerReducer", wrap_reducer)
    patches.replace(paddle.DataParallel, "forward", wrap_forward)
    return guarded("end of backward", functools.partial(_settle, exchanges), None)


def _hang(parameters: Iterable[Any], hook: Callable[[int], Callable[[], None]]) -> None:
    for index, parameter in enumerate(parameters):
        parameter._register_backward_hook(hook(index))  # noqa: SLF001  # the only hook that runs when the gradient is stored


def _arm(exchanges: weakref.WeakKeyDictionary[Any, Exchange], module: Any) -> None:
    """As DataParallel does: its reducer works in the next backward unless the forward was told not to synchronize."""
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
    """The exchange of a reducer that is about to be made of these."""
    recorder = books.recorder
    backend = str(process_group.name()).lower()
    name = _communicator(process_group)
    log = BucketLog(
        recorder,
        books.collectives,
        name,
        int(process_group.size()),
        backend,
        sequence=sequences[name],
    )
    return Exchange(
        recorder,
        log,
        [_describe(parameters, is_sparse, members) for members in groups],
        blocking=backend == BLOCKING,
    )


def _communicator(process_group: Any) -> str:
    known = vars(paddle.distributed.communication.group)["_GroupManager"].group_map_by_id.values()
    return next(
        (str(group.name) for group in known if group.process_group is process_group), "default"
    )


def _describe(parameters: Any, is_sparse: Any, members: Sequence[int]) -> Group:
    size = sum(
        int(parameters[member].size) * int(parameters[member].element_size()) for member in members
    )
    sparse = any(is_sparse[member] for member in members)
    return Group(
        tuple(members),
        None if sparse else size,
        str(parameters[members[0]].dtype).removeprefix("paddle."),
    )
