"""The run waits longer for its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from profkit.explain.evidence import Loader
from profkit.explain.ledger import sum_rows
from profkit.explain.rules._input import (
    NO_WORKERS,
    is_crowded_out,
    is_slow_on_all_ranks,
    slow_piece,
)
from profkit.explain.rules.base import (
    Case,
    Cause,
    from_to,
    grew,
    here,
    in_time,
    input_is_hidden,
    knobs_for,
)
from profkit.frame.costs import DATA
from profkit.frame.notices import is_log
from profkit.text import duration, significant
from profkit.vocab import Phase

_REMEDIES = {
    NO_WORKERS: "make batches in {workers}",
    "read": "put the data on a faster disk or in memory, or read ahead with {workers}",
    "decode": "use {workers}, or decode elsewhere (DALI); check that the host has the cores",
    "collate": "collate less: smaller or fixed shapes; or use {workers}",
    "queue": "pin the memory, or hand batches over in shared memory: they are ready, but arrive "
    "late",
}
"""What to try, by the piece of the data that is slow."""

_MEASURED = {
    "read": "the time that waits, as for files, blocked",
    "decode": "the processor time of",
    "collate": "the time in collate_fn of",
}
"""The figure behind a piece of the loader."""

_OTHERWISE = (
    "use {workers} and a deeper prefetch; then see which of read, decode and collate is left"
)
_IN_LOG = (
    "more loader workers and a deeper prefetch; then record the job itself (profkit run), which "
    "shows which of read, decode and collate is left"
)
_OF_RANK_0 = (
    "rank 0's wait is a lower bound: other ranks' waits appear as its gradient exchange, and the "
    "device may work while it waits"
)


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    row = ledger.find(DATA)
    if row is None or not grew(row, ledger) or input_is_hidden(case) or is_crowded_out(case):
        return None
    detail = slow_piece(case, row.delta.value * ledger.samples_per_step)
    what = "the exposed wait for data"
    if is_log(case.after.trace):
        what = "the wait for data"
    words = [f"{what} went from {from_to(row, ledger)} per step"]
    words += _describe_loader(case, detail)
    piece = detail
    if row.inside and not detail:
        largest = max(row.inside, key=lambda part: part.delta.value)
        words.append(f"most of it is {largest.name}, {from_to(largest, ledger)}")
        piece = largest.name
    remedy = _say_remedy(piece, case.after.loader)
    words += knobs_for(case, DATA)
    if is_log(case.after.trace) and not ledger.turned:
        remedy = _IN_LOG
        if case.target.world_size > 1:
            words.append(_OF_RANK_0)
    exchange, latest = ledger.find(Phase.ALLREDUCE.value), case.after.work.latest()
    if (
        exchange is not None
        and grew(exchange, ledger)
        and latest is not None
        and latest.phase == Phase.DATA.value
        and is_slow_on_all_ranks(case, latest.rank)
    ):
        row = sum_rows(ledger, "data and waiting for it", (DATA, Phase.ALLREDUCE.value))
        words.append(
            f"{here(ledger)}"
            f"the ranks' batches are late in turns, and with the time that they wait for each "
            f"other it went from {from_to(row, ledger)}"
        )
    cause = Cause.from_row("input_bound", row, ledger, "; ".join(words), remedy, detail=detail)
    return dataclasses.replace(cause, is_steady=True, ranks=())


def _describe_loader(case: Case, detail: str) -> Iterator[str]:
    """Yield what changed in the loader, if both sides timed it."""
    before, after = case.before.loader, case.after.loader
    if before is None or after is None:
        return
    if detail == NO_WORKERS:
        was, now = in_time(case.ledger, before.workers, after.workers)
        maker = "the loop makes the batches itself"
        if after.in_thread:
            maker = "a thread of the training process makes the batches"
        yield (
            f"the loader's workers of each rank went from {significant(was)} to "
            f"{significant(now)}; without any, {maker}"
        )
    elif detail:
        first, then = in_time(case.ledger, before.pieces.get(detail, 0.0), after.pieces[detail])
        longer = "takes longer"
        if case.ledger.turned:
            longer = "takes less time"
        measured, makers = _MEASURED[detail], _describe_makers(case, before, after)
        if detail == "read" and not (before.workers and after.workers):
            measured = "the time that waits, as for files or a core, blocked"
        yield (
            f"making a batch {longer}: {detail} went from {duration(first)} to {duration(then)} "
            f"per step, {measured} {makers}"
        )


def _describe_makers(case: Case, before: Loader, after: Loader) -> str:
    """Return the processes whose time a piece of the loader is."""
    makers = []
    for loader in in_time(case.ledger, before, after):
        if loader.workers:
            makers.append("the loader's workers")
        elif loader.in_thread:
            makers.append("a thread of the training process")
        else:
            makers.append("the training process")
    first, then = makers
    return first if first == then else f"{first}, then {then}"


def _say_remedy(piece: str, loader: Loader | None) -> str:
    """Return what helps a piece of the data; a loader without workers first needs some."""
    remedy = _REMEDIES.get(piece, _OTHERWISE)
    if loader is None or loader.workers:
        return remedy.format(workers="more workers (num_workers)")
    maker = "the loop makes each batch itself, and does not train meanwhile"
    if loader.in_thread:
        maker = "a thread makes each batch, and Python runs one thread at a time"
    return f"{remedy.format(workers='workers (num_workers above 0)')}; now {maker}"
