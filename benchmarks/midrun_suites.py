"""The jobs that `midrun.py` records: which change begins at which step, and its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

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


SEEN = frozenset(
    {
        "a check in a model",
        "a gradient's hook",
        "a growing history",
        "a slow network",
        "a stall",
        "a thread",
        "an outage",
        "averaging weights",
        "longer sentences",
        "metrics",
        "neighbours",
        "reading files",
        "snapshots",
        "validation",
    }
)
"""Jobs whose misses led to a rule: they no longer show what the rules are worth."""

DEVELOPMENT: Mapping[str, Planted] = {
    "healthy": Planted("none"),
    "healthy, short steps": Planted("none", options=("--sleep-ms", "4", "--steps", "900")),
    "healthy, two ranks": Planted("none", ranks=2),
    "a layer": Planted("forward", [STEP], [LINE]),
    "the backward": Planted("backward", [STEP], [LINE], options=("--extra-ms", "3.5")),
    "the data set": Planted("input", [STEP], ["input_bound"]),
    "a worker": Planted("workers", [STEP], ["input_bound"]),
    "the optimizer": Planted("optimizer", [STEP], [LINE, "optimizer_unfused"]),
    "between steps": Planted("outside", [STEP], ["time_outside_phases", LINE]),
    "before the update": Planted("clipping", [STEP], ["time_outside_phases", LINE]),
    "checkpoints": Planted("checkpoint", [PERIODIC], ["checkpoint_in_training"], every=8),
    "evaluation": Planted("evaluation", [PERIODIC], ["evaluation_in_training"], every=10),
    "a busy thread": Planted("lock", [STEP], ["interpreter_lock"]),
    "garbage": Planted("garbage", [STEP], ["garbage_pauses"]),
    "a drift": Planted("drift", [DRIFT, STEP], ["drift", LINE], options=("--extra-ms", "8")),
    "larger batches": Planted("batch", [STEP], [BATCH]),
    "other processes": Planted("hogs", [STEP], ["host_busy"]),
    "a late rank": Planted("late", [STEP], ["late_rank"], ranks=2),
    "a rank's exchange": Planted(
        "exchange", [STEP], ["late_rank", "exposed_communication"], ranks=2
    ),
    "a second pass": Planted("calls", [STEP], ["more_calls"]),
    "a flush every 20 steps": Planted("flush", [PERIODIC], ["time_outside_phases", LINE], every=20),
    "a burst": Planted("burst", [BURST], [LINE], options=("--extra-ms", "9")),
    "a quicker layer": Planted("quicker", [STEP], [LINE]),
    "hooks on gradients": Planted("hook", [STEP], [LINE], 150, ("--uneven",)),
    "averages of weights": Planted("average", [STEP], [LINE, "optimizer_unfused"], 130),
    "a mask in the loop": Planted("mask", [STEP], [LINE], 120),
    # A tensor that is pickled calls `torch.save`, so profkit may see the checkpoint that this is.
    "states in files": Planted(
        "dump", [PERIODIC], ["time_outside_phases", LINE, "checkpoint_in_training"], every=8
    ),
    "an optimizer by weights": Planted("unfused", [STEP], [LINE, "optimizer_unfused"], 140),
    "a layer after a slow start": Planted("forward", [STEP], [LINE], 120, ("--uneven",)),
}

HELD_OUT: Mapping[str, Planted] = {
    "healthy": Planted("none", at=120),
    "healthy, small batches": Planted("none", at=120, options=("--batch", "4", "--steps", "500")),
    "an encoder": Planted("encoder", [STEP], [LINE], 120),
    "a gradient's hook": Planted("gradient", [STEP], [LINE], 150),
    "reading files": Planted("files", [STEP], ["input_bound"], 110),
    "collating in workers": Planted("collate", [STEP], ["input_bound"], 140),
    "averaging weights": Planted("average", [STEP], [LINE, "optimizer_unfused"], 130),
    "metrics": Planted("metrics", [STEP], ["time_outside_phases", LINE], 170),
    "norms": Planted("norms", [STEP], ["time_outside_phases", LINE], 125),
    "validation": Planted("validation", [PERIODIC], ["evaluation_in_training"], 115, every=12),
    "saving": Planted("saving", [PERIODIC], ["checkpoint_in_training"], 135, every=6),
    "a thread": Planted("thread", [STEP], ["interpreter_lock"], 145),
    "cycles": Planted("cycles", [STEP], ["garbage_pauses"], 155),
    "a growing history": Planted("history", [DRIFT, STEP], ["drift", LINE], 100),
    "smaller batches": Planted("smaller", [STEP], [BATCH], 120, ("--batch", "24")),
    "longer sentences": Planted("curriculum", [DRIFT, STEP], ["drift", LINE], 105),
    "neighbours": Planted("neighbours", [STEP], ["host_busy"], 140),
    "a late shard": Planted("shard", [STEP], ["late_rank", "input_bound"], 130, ranks=2),
    "a slow network": Planted(
        "network", [STEP], ["late_rank", "exposed_communication"], 120, ranks=2
    ),
    "accumulation": Planted("accumulate", [STEP], ["more_calls"], 125),
    "rotating logs": Planted("rotation", [PERIODIC], ["time_outside_phases", LINE], 110, every=15),
    "a stall": Planted("stall", [BURST], ["input_bound"], 150, ("--extra-ms", "14")),
}

THIRD: Mapping[str, Planted] = {
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

SUITES: Mapping[str, tuple[Path, Mapping[str, Planted]]] = {
    "development": (HERE / "midrun_job.py", DEVELOPMENT),
    "held-out": (HERE / "midrun_other_job.py", HELD_OUT),
    "third": (HERE / "midrun_third_job.py", THIRD),
}
