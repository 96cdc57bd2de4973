"""The limits of a log's wait for data: it is one rank's, and the device may hide it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profkit.analysis.notices import is_log
from profkit.explain.ledger import Row
from profkit.explain.rules.base import Case
from profkit.text import duration, percent
from profkit.trace import RunManifest

DOUBTFUL_WAIT_SHARE = 0.2
"""A base that waits for more than this share of its step is input-bound, or its wait is hidden."""

AS_FAST, SLOWER = 1.05, 1.2
"""First steps are as fast as the base's within the one factor; later ones slower by the other."""

FEWEST_FIRST_STEPS, MOST_FIRST_SHARE = 10, 0.2

REMEDY = (
    "more loader workers and a deeper prefetch; then record the job itself (profkit run), which "
    "shows which of read, decode and collate is left"
)

DALI_REMEDY = (
    "DALI makes the batches, partly on the device, where it competes with the training: compare "
    "dali-cpu with dali-gpu, give it more threads, and watch the device's and the host's load"
)


def uses_dali(run: RunManifest) -> bool:
    """Return true if a log states that DALI makes the batches."""
    config = run.config
    return str(config.get("dali")) == "True" or str(config.get("loader", "")).startswith("dali")


def is_doubtful_wait(case: Case, row: Row) -> bool:
    """Return true if the base of a log waits so long that the device probably works meanwhile."""
    share = row.base.value / case.ledger.total.base.value
    return is_log(case.after.trace) and share > DOUBTFUL_WAIT_SHARE


def describe_input_in_log(case: Case, row: Row) -> Iterator[str]:
    """Yield what a reader must know before believing the figure of a log."""
    if case.target.world_size > 1:
        yield "rank 0's wait is a lower bound: other ranks' waits appear as its gradient exchange"
    if is_doubtful_wait(case, row):
        share = row.base.value / case.ledger.total.base.value
        yield (
            f"the base already waits for {percent(share, 0)} of its step: such waits can pass "
            "while the device works, so that the input's part of the gap can be smaller"
        )
    yield from _fast_beginning(case)


def _fast_beginning(case: Case) -> Iterator[str]:
    """Yield that the first steps are as fast as the base's: their batches were ready."""
    costs = case.after.costs
    base_ns = case.before.step_ns * case.after.step_samples / (case.before.step_samples or 1)
    step_ns = costs.wall_ns / costs.ranks
    slow = np.flatnonzero(step_ns > AS_FAST * base_ns)
    first = int(slow[0]) if len(slow) else 0
    if not FEWEST_FIRST_STEPS <= first <= MOST_FIRST_SHARE * len(step_ns):
        return
    if float(np.median(step_ns[first:])) < SLOWER * base_ns:
        return
    yield (
        f"the first {first:,} steps take {duration(float(step_ns[:first].mean()))}, about as long "
        f"as the base's {duration(base_ns)}: batches were ready then, so what is not rank 0's own "
        "wait is mostly waiting for ranks whose batches are late, not the exchange"
    )
