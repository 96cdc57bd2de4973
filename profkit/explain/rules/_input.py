"""Figures of the input that several rules share: which piece is slow, and on which ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import Case, computing_factor, is_material
from profkit.frame.costs import DATA
from profkit.frame.exposed import INPUT_PIECES

NO_WORKERS = "no workers"
QUEUE = "queue"
"""The piece in which a batch is finished and waits to be fetched."""

MAKING = tuple(piece for piece in INPUT_PIECES if piece != QUEUE)
"""The pieces in which work is done on a batch."""

SLOW_PIECE_SHARE = 0.25
"""A piece is slow if it grew by more than this share of what the wait for input grew by."""

MIN_OTHER_CORES = 0.25
"""Processes outside the run can be in its way if they use more than this many cores."""

MIN_SHARE_OF_LATEST = 0.5
"""All ranks are slow if each grew by more than this share of what the latest one grew by."""

MIN_RATIO_TO_COMPUTING = 2.0
"""A lack of cores makes a piece longer by at most this times the factor of computing."""

LEAST_GROWN = 0.05
"""A piece that grew by a smaller share of itself takes as long as before."""

_TIMED_WITHOUT_WAITING = frozenset({"read", "decode"})
"""Pieces timed without the wait for a core: a busy machine makes none of them longer."""


def slow_piece(case: Case, added_ns: float) -> str:
    """Return the piece of making a batch that takes longer, in workers or in the loop itself.

    The result is empty if batches are made as fast as before, or if nothing timed their making.
    """
    before, after = case.before.loader, case.after.loader
    if after is None or before is None:
        return ""
    if before.workers and not after.workers:
        return NO_WORKERS
    base_factor = case.ledger.batch_factor(case.before.step_samples)
    target_factor = case.ledger.batch_factor(case.after.step_samples)
    name, grown_ns = "", -np.inf
    for piece, ns in after.pieces.items():
        known_ns = before.pieces.get(piece, 0.0) * base_factor
        grown = ns * target_factor - known_ns
        if piece != QUEUE and grown > max(grown_ns, LEAST_GROWN * known_ns):
            name, grown_ns = piece, grown
    return name if grown_ns > SLOW_PIECE_SHARE * added_ns else ""


def is_crowded_out(case: Case) -> bool:
    """Return true if processes outside the run may take the cores that the input needs.

    Then nothing shows that the input itself is slow.
    """
    load = case.after.load
    if load is None or not load.full or (load.others or 0.0) <= MIN_OTHER_CORES:
        return False
    return waits_for_cores(case)


def waits_for_cores(case: Case) -> bool:
    """Return true if the input may be slower for lack of cores alone.

    Then no batch is more work than in the base, and as many workers make it.
    """
    before, after = case.before.loader, case.after.loader
    row = case.ledger.find(DATA)
    if row is None or before is None or after is None or after.workers < before.workers:
        return False
    piece = slow_piece(case, row.delta.value * case.ledger.samples_per_step)
    if piece in _TIMED_WITHOUT_WAITING:
        return False
    known_ns, piece_ns = before.pieces.get(piece, 0.0), after.pieces.get(piece, 0.0)
    return piece_ns <= MIN_RATIO_TO_COMPUTING * computing_factor(case.ledger) * known_ns


def is_slow_on_all_ranks(case: Case, latest: int) -> bool:
    """Return true if the batches of all ranks take longer to make, not just the latest rank's.

    Ranks that meet in each step share one wait: the rank whose batch comes last waits for it, and
    the others wait for that rank, even if their own batches come no faster.
    """
    before, after = case.before.figure(making_ns), case.after.figure(making_ns)
    if latest not in after or not before:
        return False
    mean_before = sum(before.values()) / len(before)
    added = {rank: ns - before.get(rank, mean_before) for rank, ns in after.items()}
    latest_added = added.pop(latest)
    if not added:
        return False
    least = min(added.values())
    return is_material(least, case.ledger) and least > MIN_SHARE_OF_LATEST * latest_added


def making_ns(evidence: Evidence) -> Mapping[int, float]:
    """Return the time to read, decode and collate, in ns per step, by rank."""
    spans = evidence.trace.spans
    is_making = pc.is_in(spans["name"].cast(pa.string()), pa.array(MAKING))
    rows = evidence.select_used(spans.filter(is_making))
    rank = rows["rank"].to_numpy()
    length = rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy()
    found = {}
    for each in np.unique(rank).tolist():
        found[each] = float(length[rank == each].sum()) / len(evidence.used)
    return found
