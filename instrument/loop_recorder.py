"""The interface with which a training loop records itself, and one that does nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, TypeVar

from profkit.vocab import EventKind, Phase

T = TypeVar("T")
B = TypeVar("B", bound="_Block")


class _Block(Protocol):
    """A `with` block of a loop. Explicit subclasses that define nothing else do nothing."""

    def __enter__(self: B) -> B:  # noqa: PYI019  # Python 3.10 has no typing.Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return


class Region(_Block, Protocol):
    """An open phase, or a region inside one."""

    bytes: int | None

    def rename(self, name: str) -> None:
        return


class Step(_Block, Protocol):
    """An open step. The loop sets what it knows of the step before it ends."""

    sample_count: int
    epoch: int | None
    loss: float | None
    grad_scale: float | None


class _Nothing(Region, Step):
    """A region and a step whose fields nobody reads."""

    bytes = epoch = loss = grad_scale = None
    sample_count = 0


NOTHING = _Nothing()


class LoopRecorder(Protocol):
    """The calls of a training loop. `Recorder` records them; `NullRecorder` does nothing."""

    def phase(self, phase: Phase | str, name: str = "") -> Region:
        return NOTHING

    def step(self, sample_count: int, *, epoch: int | None = None) -> Step:
        return NOTHING

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        return iter(loader)

    def begin(self) -> None:
        return

    def end_backward(self) -> None:
        return

    def note(self, metric: str, value: float) -> None:
        return

    def note_event(self, kind: EventKind, name: str, detail: str) -> None:
        return


class NullRecorder(LoopRecorder):
    """A recorder for loops that run without profkit: it times and keeps nothing."""
