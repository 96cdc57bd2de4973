"""The interface with which a training loop records itself, and one that does nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, TypeVar

from profkit.vocab import Phase

T = TypeVar("T")


class Region(Protocol):
    """An open phase, or a region inside one."""

    bytes: int | None

    def rename(self, name: str) -> None: ...

    def __enter__(self) -> Region: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Step(Protocol):
    """An open step. The loop sets what it knows of the step before it ends."""

    sample_count: int
    epoch: int | None
    loss: float | None
    grad_scale: float | None

    def __enter__(self) -> Step: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class LoopRecorder(Protocol):
    """The calls of a training loop. `Recorder` records them; `NullRecorder` does nothing."""

    def phase(self, phase: Phase | str, name: str = "") -> Region: ...

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step: ...

    def batches(self, loader: Iterable[T]) -> Iterator[T]: ...

    def begin(self) -> None: ...

    def end_backward(self) -> None: ...

    def note(self, metric: str, value: float) -> None: ...


class NullRecorder:
    """A recorder for loops that run without profkit: it times and keeps nothing."""

    def phase(self, phase: Phase | str, name: str = "") -> Region:
        return NOTHING

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step:
        return NOTHING

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        return iter(loader)

    def begin(self) -> None:
        pass

    def end_backward(self) -> None:
        pass

    def note(self, metric: str, value: float) -> None:
        pass


class _Nothing:
    """A region and a step whose fields nobody reads."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        self.sample_count = 0
        self.epoch: int | None = None
        self.loss: float | None = None
        self.grad_scale: float | None = None

    def rename(self, name: str) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


NOTHING = _Nothing()
