"""The steps that an experiment slowed, which no other figure is about."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Ints
from profkit.vocab import EXPERIMENT, EXPERIMENT_SETTLES, EXPERIMENTS

_MOST_STEP = 2**53


def slowed_steps(samples: pa.Table) -> dict[str, Ints]:
    """Return the steps that were slowed, by the phase that was not."""
    rows = samples.filter(pc.equal(samples["source"].cast(pa.string()), EXPERIMENTS))
    names = rows["metric"].cast(pa.string()).to_pylist()
    steps: dict[str, set[int]] = {}
    for name, value in zip(names, rows["value"].to_pylist(), strict=True):
        if name.startswith(EXPERIMENT) and 0 <= value < _MOST_STEP:
            steps.setdefault(name.removeprefix(EXPERIMENT), set()).add(int(value))
    return {phase: np.array(sorted(each), dtype=np.int64) for phase, each in steps.items()}


def unlike_steps(samples: pa.Table) -> Ints:
    """Return all slowed steps, with those after them that still have what these left."""
    slowed = [np.empty(0, dtype=np.int64), *slowed_steps(samples).values()]
    steps = np.concatenate(slowed)
    return np.unique(steps[:, None] + np.arange(EXPERIMENT_SETTLES + 1))
