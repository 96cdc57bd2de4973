"""The weights of one module, as a large embedding, are most of what is gathered."""

from __future__ import annotations

from profkit.explain.rules._sharded import compared, gathered_bytes, is_gather
from profkit.explain.rules.base import Case, Cause, from_to, grew, in_time
from profkit.text import byte_size, percent, safe_text

MIN_SHARE = 0.5
"""A module dominates from this share of all gathered bytes on."""

MIN_MODULES = 3
"""Among fewer modules, one always has a large share."""

MIN_BYTES_RATIO = 1.5
"""The module gathers this many times the bytes of the other run."""

EXPLAINS = ("exposed_communication",)


def find(case: Case) -> Cause | None:
    """Compare the module that gathers most with what it gathers in the base."""
    exchange, ledger = compared(case), case.ledger
    before, after = case.before.figure(gathered_bytes), case.after.figure(gathered_bytes)
    if exchange is None or len(after) < MIN_MODULES:
        return None
    if not (sum(before.values()) and sum(after.values())):
        return None  # imported traces may not know the bytes
    module = max(after, key=lambda name: after[name])
    share, known = after[module] / sum(after.values()), before.get(module, 0.0)
    known_share = known / sum(before.values())
    is_more = after[module] >= MIN_BYTES_RATIO * known
    if share < MIN_SHARE or known_share >= MIN_SHARE or not is_more:
        return None
    row = exchange.row("its gathers", lambda place: is_gather(place) and place.module == module)
    if not grew(row, ledger):
        return None
    was, now = in_time(ledger, (known, known_share), (after[module], share))
    evidence = (
        f"the all-gathers of {safe_text(module)} went from {byte_size(was[0])} per step "
        f"({percent(was[1], 0)} of all that is gathered) to {byte_size(now[0])} "
        f"({percent(now[1], 0)}), and their exposed time from {from_to(row, ledger)}"
    )
    remedy = (
        f"divide {safe_text(module)}: shard its large layers, such as an embedding, as units of "
        "their own, or split them over a tensor-parallel dimension"
    )
    return Cause.from_row("dominant_gather", row, ledger, evidence, remedy, explains=EXPLAINS)
