"""The target at which a run stops: a mean loss, or a quality figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from profkit.errors import UsageError

ALIASES = {"miou": "mean_iou"}
"""Other names of quality figures, as the published reports write them."""

NUMBER = r"\d*\.?\d+(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class Target:
    """`loss<0.05`; `loss<0.3x`, a share of the first steps' mean loss; or `top1>0.711`."""

    text: str
    figure: str
    value: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str, figures: Sequence[str] = ()) -> Target | None:
        """Read a target; `figures` are the quality figures of the workload."""
        if not text:
            return None
        match = re.fullmatch(rf"\s*(?:loss\s*<\s*({NUMBER})(x?)|(\w+)\s*>\s*({NUMBER}))\s*", text)
        if not match or (match[3] or "").lower() == "loss":
            example = figures[0] if figures else "top1"
            raise UsageError(
                f"--until '{text}' is not understood; write loss<0.05, loss<0.3x for a share of "
                f"the first steps' loss, or a quality figure such as {example}>0.7"
            )
        if match[1]:
            return cls(text, "loss", float(match[1]), bool(match[2]))
        figure = ALIASES.get(match[3].lower(), match[3].lower())
        if figure not in figures:
            known = ", ".join(figures) or "none"
            raise UsageError(f"--until '{text}': the quality figures here are: {known}")
        value = float(match[4])
        if value > 1:
            raise UsageError(
                f"--until '{text}': quality figures are shares from 0 to 1; "
                f"write {match[3]}>{value / 100:g}"
            )
        return cls(text, figure, value)

    def loss_reached(self, mean: float, first: float) -> bool:
        """Return if the mean loss of the last steps is low enough."""
        if self.figure != "loss":
            return False
        return mean < self.value * (first if self.relative else 1.0)
