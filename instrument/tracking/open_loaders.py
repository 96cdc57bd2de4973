"""The iterators of loaders from which a loop may still take a batch."""

from __future__ import annotations

import weakref
from typing import Any

from profkit.instrument.recorder import Recorder


class OpenLoaders:
    """Knows whether a loop can still take a batch of a loader."""

    def __init__(self, recorder: Recorder) -> None:
        self.open: weakref.WeakSet[Any] = weakref.WeakSet()
        """The iterators that exist and have not ended."""
        self.had_any = False
        self._recorder = recorder
        self._ended_at: int | None = None
        """The number of the open step when a loader ended last."""

    def follow(self, iterator: object) -> None:
        """Note that the loop may take batches from an iterator, as long as that exists."""
        self.had_any = True
        self.open.add(iterator)

    def forget(self, iterator: object) -> None:
        """Note that an iterator has ended."""
        self.open.discard(iterator)
        self._ended_at = self._recorder.step_now

    @property
    def are_over(self) -> bool:
        """True if all have ended, and the loop trains on nothing else since. For any thread."""
        ended_at = self._ended_at
        if ended_at is None or self.open:
            return False
        return self._recorder.step_now - ended_at <= 1  # the step that was open may have ended
