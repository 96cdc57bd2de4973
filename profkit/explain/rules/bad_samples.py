"""Samples cannot be read: they cost time and are not trained on."""

from __future__ import annotations

from profkit.analysis.estimate import Estimate, scale
from profkit.explain.rules.base import Case, Finding, all_of, is_material, share_of, shift
from profkit.text import percent, plural

MORE = 0.05
"""Batches that fall short in this share of the steps more than in the base."""

_REMEDY = "find and replace the files (the report names the first), or leave them out of the list before training: each is tried again in every epoch"


def find(case: Case) -> Finding | None:
    """By what loaders tell of single samples; else by batches that come short where the base's are full."""
    ledger, before, after = case.ledger, case.before, case.after
    told = after.bad_samples - before.bad_samples
    short = after.short_share - before.short_share
    if told <= 0 and short < MORE:
        return None
    words = (
        [f"{plural(told, 'sample')} more than in the base could not be read"] if told > 0 else []
    )
    words += (
        [
            f"batches come short in {percent(after.short_share)} of the steps, {percent(before.short_share)} in the base"
        ]
        if short >= MORE
        else []
    )
    price = _price(case)
    share = share_of(price.value, ledger) if price else None
    return Finding(
        "bad_samples",
        price,
        share,
        "; ".join(words),
        _REMEDY,
        takes=all_of("input_bound", "input_stalls", "launch_bound"),
    )


def _price(case: Case) -> Estimate | None:
    """The whole difference, with the steps that came short, which the ledger is without: it is they that waited. `None` where nothing surely takes longer."""
    ledger = case.ledger
    apart = case.after.short_adds_ns - case.before.short_adds_ns if ledger.per_sample else 0.0
    price = shift(
        scale(ledger.total.delta, ledger.samples_per_step), apart * ledger.samples_per_step
    )
    surely = price.low is not None and price.low > 0
    return price if surely and is_material(price.value, ledger) else None
