"""The training loop does something between two phases, in which no hook sees what it is."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.unknown_places import BEGIN
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Row
from profkit.explain.rules import slow_line
from profkit.explain.rules._outside import Place, largest_place
from profkit.explain.rules.base import (
    Case,
    Cause,
    computing_factor,
    cost,
    differs,
    from_to,
    grew,
    here,
    share_of,
)
from profkit.frame.estimate import scale
from profkit.frame.phases import UNKNOWN
from profkit.text import duration, percent
from profkit.vocab import Phase

MIN_SHARE_OF_STEP = 0.05
"""Less is noise: between phases, the loop is held up as often as in them."""

MIN_GROWTH, GROWTH_TO_COMPUTING = 1.5, 2.0
"""The time must take this factor longer, and more if computing takes longer: else all is slower.

A lack of cores makes it grow by up to twice the share that computing grows by.
"""

MIN_SHARE_OF_PLACE = 0.5
"""One place must hold more than this share of what was added: else the loop is slower all over."""

WAITING_SHARE, BUSY_SHARE = 0.3, 0.7
"""Below the first share of the added time on a processor the loop waits.

Above the second it may work. Between them nothing is said: readings are about a second apart.
"""

MIN_SHARE_FOR_PROCESSOR = 0.25
"""Nothing is said of less time than this share of a step: processor time is not as exact."""

_OTHER_WORK = ("parameters_count", "parameters_bytes", "precision")
"""If one of these settings differs, the same code takes longer on other weights and gradients."""

_BEFORE = {
    Phase.H2D.value: "getting and changing the batch",
    Phase.FORWARD.value: "getting and changing the batch, a model's inputs",
    Phase.BACKWARD.value: "the loss, and what is computed from the outputs",
    Phase.OPTIMIZER.value: "clipping, reading gradients or losses",
}
"""The usual work before a phase; before anything else, it is that after the update."""

_AFTER_UPDATE = "logging, metrics, averages of weights, writing files"

_UPDATED = (BEGIN, Phase.OPTIMIZER.value, Phase.OTHER.value)
_WITH_BATCH = (Phase.H2D.value, Phase.FORWARD.value)
"""Between the first and the second, a loop without a wait for a loader does both kinds of work."""


def find(case: Case) -> Cause | None:
    """Name the place, unless captured steps show the line that takes most of the time there."""
    ledger = case.ledger
    row = ledger.find(UNKNOWN)
    if row is None or not grew(row, ledger) or not _stands_out(case, row):
        return None
    if any(differs(case, name) for name in _OTHER_WORK):
        return None
    place, added_ns = largest_place(case)
    whole = cost(row, ledger)
    if added_ns <= MIN_SHARE_OF_PLACE * whole.value:
        return None
    line, line_ns = slow_line.longest(case, UNKNOWN)
    if line_ns >= MIN_SHARE_OF_PLACE * added_ns:
        return None  # the line says more than its place
    words = [
        f"time outside all phases went from {from_to(row, ledger)} per step",
        f"{here(ledger)}it is {duration(added_ns)} longer from {place[0]} to {place[1]}",
        *_describe_processor(case, added_ns),
        *([line] if line else []),
    ]
    price = scale(whole, min(1.0, added_ns / whole.value))
    return Cause(
        "time_outside_phases",
        price,
        share_of(price.value, ledger),
        "; ".join(words),
        f"look at what the loop does there{usual_work(place)}; {_say_lines(case.after)}",
        detail=f"{place[0]} to {place[1]}",
        rows=(UNKNOWN,),
    )


def _say_lines(evidence: Evidence) -> str:
    """Return where the lines are that take the time, or how to sample them."""
    if evidence.code is None:
        return "'profkit run --lines on' samples its lines"
    return f"'profkit report' of the run shows its sampled lines, in the phase {UNKNOWN}"


def usual_work(place: Place) -> str:
    """Return the work that a loop usually does there; next to an exchange, nothing is usual."""
    after, before = place
    if before in _BEFORE:
        words = _BEFORE[before]
        if after in _UPDATED and before in _WITH_BATCH:
            words = f"{_AFTER_UPDATE}, {words}"
        return f": {words}"
    return "" if before == Phase.ALLREDUCE.value else f": {_AFTER_UPDATE}"


def _stands_out(case: Case, row: Row) -> bool:
    """Return true if the time grew by much, and by much more than computing did."""
    if not (case.before.costs.knows_phases and case.after.costs.knows_phases):
        return False
    if row.delta.value < MIN_SHARE_OF_STEP * case.ledger.total.base.value:
        return False
    least = MIN_GROWTH + GROWTH_TO_COMPUTING * (computing_factor(case.ledger) - 1)
    return row.target.value > least * row.base.value


def _describe_processor(case: Case, added_ns: float) -> Iterator[str]:
    """Yield how much of the added time the process was on a processor, if that is clear."""
    ledger = case.ledger
    known_ns = case.before.own_ns(ledger.batch_factor(case.before.step_samples))
    own_ns = case.after.own_ns(ledger.batch_factor(case.after.step_samples))
    is_enough = (
        added_ns >= MIN_SHARE_FOR_PROCESSOR * ledger.total.base.value * ledger.samples_per_step
    )
    if known_ns is None or own_ns is None or not is_enough:
        return
    share = (own_ns - known_ns) / added_ns
    if share < WAITING_SHARE:
        yield "the process hardly used a processor meanwhile: it waits, for a disk or in a sleep"
    elif share > BUSY_SHARE:
        shown = percent(min(1.0, share), 0)
        yield f"the process used a processor for {shown} of it"
