"""What the lookout asks of the loop that it follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from profkit.instrument.recorder import Recorder


class Loop(Protocol):
    """The loop that is followed. A `Tracker` follows that of a job."""

    @property
    def recorder(self) -> Recorder: ...

    @property
    def thread(self) -> int | None: ...

    @property
    def models(self) -> Iterable[Any]: ...

    @property
    def standing(self) -> tuple[str, str]: ...

    @property
    def loaders_over(self) -> bool: ...
