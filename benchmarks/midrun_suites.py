"""The jobs that `midrun.py` records: which change begins at which step, and its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINE = "slow_line"
BATCH = "batch"
"""No cause of `explain`: the change itself must say that a step has other samples."""

STEP, DRIFT, BURST, PERIODIC = "step", "drift", "burst", "periodic"


@dataclass(frozen=True)
class Planted:
    """A job with a change at a step; `kinds` and `causes` are those that are right."""

    change: str
    kinds: Sequence[str] = ()
    causes: Sequence[str] = ()
    at: int = 160
    options: Sequence[str] = ()
    ranks: int = 1
    every: int = 1
    """A change that comes every so many steps."""


SEEN = frozenset({"a check in a model", "an outage", "snapshots"})
"""Jobs whose misses led to a rule: they no longer show what the rules are worth."""

JOBS: Mapping[str, Planted] = {
    "healthy, pictures": Planted("none", at=130, options=("--steps", "360")),
    "healthy, texts": Planted("none", at=130, options=("--task", "texts", "--steps", "360")),
    "a check in a model": Planted("finite", [STEP], [LINE], 130),
    "a mask from a helper": Planted("mask", [STEP], [LINE], 115),
    "histograms of gradients": Planted("watch", [STEP], [LINE], 150),
    "a callback's metric": Planted("perplexity", [STEP], ["time_outside_phases", LINE], 140),
    "a cached table": Planted("cached", [STEP], [LINE], 125),
    "padding": Planted("padding", [STEP], ["input_bound"], 145),
    "decoding in workers": Planted("decode", [STEP], ["input_bound"], 135, ("--extra-ms", "6")),
    "a validation loader": Planted(
        "validation", [PERIODIC], ["evaluation_in_training"], 120, every=9
    ),
    "snapshots": Planted("snapshot", [PERIODIC], ["checkpoint_in_training"], 110, every=7),
    "an outage": Planted("outage", [BURST], ["input_bound"], 155, ("--extra-ms", "14")),
    "a running median": Planted(
        "median", [DRIFT, STEP], ["drift", "time_outside_phases", LINE], 105
    ),
    "a guard of memory": Planted("guard", [STEP], ["garbage_pauses"], 160),
    "a thread that parses": Planted("parser", [STEP], ["interpreter_lock"], 120),
    "a compiler next door": Planted("compiler", [STEP], ["host_busy"], 140),
    "longer texts": Planted("longer", [STEP], [BATCH, LINE], 130),
    "a second view": Planted("twice", [STEP], ["more_calls"], 165),
    "a restored optimizer": Planted("restored", [STEP], ["optimizer_unfused", LINE], 125),
    "a rank's loss": Planted("edges", [STEP], ["late_rank"], 120, ranks=2),
    "a rank that compresses": Planted(
        "squeeze", [STEP], ["late_rank", "exposed_communication"], 145, ranks=2
    ),
    "a journal on the first rank": Planted(
        "journal", [STEP], ["late_rank", "time_outside_phases", LINE], 130, ranks=2
    ),
}
"""Written by somebody who had seen none of the rules."""
