"""The loss of the open step, of all losses whose gradients were computed in it."""

from __future__ import annotations


class Losses:
    """The losses of one step.

    A step that accumulates gradients over several batches has computed a part of its loss with
    each, so its loss is their sum. If a batch has several losses, as those of several models, the
    last one counts. An optimizer that computes the same loss again and again counts once.
    """

    def __init__(self) -> None:
        self.loss: float | None = None
        """The last loss, or the one that the loop itself has reported."""
        self.scale = 1.0
        self.backwards = 0
        self._last: float | None = None
        self._outside = self._inside = 0.0

    def add(self, loss: float | None, *, in_optimizer: bool) -> None:
        """Add a backward, with its loss if the host knows it."""
        self.backwards += 1
        if loss is None:
            return
        self.loss = self._last = loss / self.scale
        if in_optimizer:
            self._inside = self._last
        else:
            self._outside += self._last

    def total(self, batches: int, optimizers: int) -> float | None:
        """Return the loss of a step of so many batches (0: not known) and optimizers."""
        is_last = self.loss is not self._last or self.backwards < 2 or optimizers > 1
        if self.loss is None or is_last or (batches and self.backwards > batches):
            return self.loss
        return self._outside + self._inside

    def clear(self) -> None:
        """Begin the next step."""
        self.loss = self._last = None
        self.backwards = 0
        self._outside = self._inside = 0.0
