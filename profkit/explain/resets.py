"""The caveat of a comparison of which one side alone times the reset of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from profkit.analysis.columns import durations, places_in
from profkit.analysis.device_clock import exposed_spans
from profkit.analysis.device_times import is_own
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger
from profkit.explain.rules.base import is_material
from profkit.text import duration
from profkit.vocab import ZERO_GRAD, Phase


class Resets(NamedTuple):
    """What hooks saw of an optimizer: whether it stepped, and the time of resets per step."""

    steps: bool
    time_ns: float


def reset_caveats(before: Evidence, after: Evidence, ledger: Ledger) -> Iterator[str]:
    """Yield a caveat if only one side's optimizer includes the reset of gradients.

    Hooks time the optimizer's own method alone.
    """
    sides = [(side.figure(read_resets), side.trace) for side in (before, after)]
    (missing, without), (present, timed) = sorted(sides, key=lambda side: side[0].time_ns)
    if missing.time_ns or not missing.steps or not is_material(present.time_ns, ledger):
        return
    yield (
        f"the optimizer of {timed.name} includes {duration(present.time_ns)} per step for the "
        f"gradient reset; {without.name} recorded no such call, so its optimizer includes none"
    )


def read_resets(evidence: Evidence) -> Resets:
    """Return what a run's own hooks saw, on the device's clock if there is one.

    Imported traces name such calls otherwise.
    """
    count = len(evidence.used) * evidence.costs.ranks
    spans = exposed_spans(evidence.select_used(evidence.trace.spans))
    spans = spans.filter(pc.equal(spans["depth"], 0))
    if not spans.num_rows or not count or not is_own(evidence.trace):
        return Resets(False, 0.0)
    is_reset = places_in(spans["name"], (ZERO_GRAD,)) == 0
    is_optimizer = places_in(spans["phase"], (Phase.OPTIMIZER.value,)) == 0
    steps = bool(np.any(is_optimizer & ~is_reset))
    return Resets(steps, float(durations(spans)[is_reset].sum()) / count)
