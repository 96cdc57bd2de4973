"""The removal of a cause from a run's model."""

from __future__ import annotations

from dataclasses import dataclass

from profkit.analysis.whatif.step_model import StepModel

MIN_SHOWN_SHARE = 0.02
"""What is below this share of the step is noise: two runs of one job differ by as much."""


class NotShownError(Exception):
    """The run does not show a cause by itself, so it cannot be removed. The message says why."""


class AbsentError(NotShownError):
    """The run measured that a cause is absent.

    Only such a run scores a prediction of the step without the cause. Of others nobody knows: the
    cause was not recorded, or it is not sure.
    """


@dataclass(frozen=True, eq=False)
class Removal:
    """A run without a cause: the likely model first, then those at the ends of the interval."""

    models: tuple[StepModel, ...]
    rests_on: tuple[str, ...] = ()
    leaves_out: tuple[str, ...] = ()
    why: str = ""
    """Why the answer is inconclusive; empty if it is not."""
    next: str = ""
