"""The section about MFU: its factors, and what each takes of a step."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.utilisation import (
    BUSY,
    CLOCK,
    MATRICES,
    RATE,
    TOGETHER,
    USEFUL,
    Factor,
    Utilisation,
)
from profkit.show.document import Column, Quantity, Section, Table, missing
from profkit.show.figures import MS, SHARE
from profkit.text import duration, percent, significant

MFU = "MFU"

_MEANINGS = {
    BUSY: "the device works",
    MATRICES: "of that, it works on matrices, convolutions and attention",
    CLOCK: "the device's clock, compared with that of its peak",
    RATE: "the rate of this work, compared with the peak",
    TOGETHER: "operations at the peak, compared with the step",
    USEFUL: "of the operations, those of forward and backward, each once",
    MFU: "the product, and the time of the useful operations at the peak",
}
_COLUMNS = (
    Column("factor", "factor", lambda factor: factor.name),
    Column("share", "share", lambda factor: factor.share, SHARE),
    Column("ms_per_step", "per step", lambda factor: factor.lost_ns, MS),
    Column("", "what it is", lambda factor: _MEANINGS[factor.name]),
)


def utilisation_section(found: Utilisation | None) -> Iterator[Section]:
    if found is None:
        yield from missing("utilisation")
        return
    rows, table = list(found.factors), None
    if found.useful_ns is not None:
        rows.append(Factor(MFU, found.mfu, found.useful_ns))
        table = Table(_COLUMNS, found.factors, rows)
    notes = []
    if found.mfu is not None:
        at_least = "at least " * found.at_least
        notes.append(f"MFU is {at_least}{percent(found.mfu)}. {_counted(found)}")
        notes.append(_peak(found))
    else:
        notes.append(f"{_counted(found)} MFU is not known: {found.missing}.")
    if found.mfu is not None and found.missing:
        notes.append(f"{found.missing[0].upper()}{found.missing[1:]}.")
    facts = {
        "mfu": found.mfu,
        "is_at_least": found.at_least,
        "useful_flops": found.useful_flops,
        "flops": found.flops,
        "peak": found.peaks and found.peaks.device,
        "peak_flops_per_s": found.peaks and found.peaks.rates,
        "useful_ms_per_step": Quantity(found.useful_ns, MS),
        "missing": found.missing or None,
    }
    title = "Use of the device's peak"
    yield Section(title, tuple(notes), table=table)
    yield Section(key="utilisation", facts={**facts, "factors": Table(_COLUMNS, found.factors)})


def _counted(found: Utilisation) -> str:
    """Return the operations of a step."""
    useful, every = sum(found.useful_flops.values()), sum(found.flops.values())
    words = f"A step has {_operations(useful)} that train"
    if every > useful:
        words += f", and {_operations(every - useful)} more that recompute, or that optimizers need"
    return f"{words}. Attention is counted as if it had no mask."


def _operations(count: float) -> str:
    for factor, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= factor:
            return f"{significant(count / factor)} {unit}FLOP"
    return f"{significant(count)} FLOP"


def _peak(found: Utilisation) -> str:
    assert found.peaks is not None  # noqa: S101  # the caller knows MFU
    rates = []
    for precision in found.flops:
        rates.append(f"{significant(found.peaks.rates[precision] / 1e12)} TFLOP/s in {precision}")
    step = duration(found.step_ns)
    return f"The peak of {found.peaks.device} is {', '.join(rates)}; a step takes {step}."
