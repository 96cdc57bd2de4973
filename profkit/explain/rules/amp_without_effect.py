"""Mixed precision is on, and the step is no faster for it."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.matrix import FULL_PRECISIONS
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Row
from profkit.explain.rules._windows import moving_calls, moving_ns
from profkit.explain.rules.base import (
    Case,
    Finding,
    all_of,
    compute_row,
    cost,
    from_to,
    is_clear,
    is_material,
    share_of,
)
from profkit.text import duration, percent, significant
from profkit.trace import RunManifest

EXPECTED_GAIN = 0.05
"""Mixed precision that makes computing faster by less than this is without effect."""

LAUNCH_BOUND = 0.3
FEW_ON_TENSOR_CORES = 0.5
OFTEN_CAST = 0.1

_REMEDY = "see which of these it is: NHWC and sizes that are multiples of 8, larger batches, fewer casts (whole blocks in autocast); on a CPU, whether it has the instructions; else stay with fp32"


def find(case: Case) -> Finding | None:
    ledger = case.ledger
    if is_mixed(case.base, case.before) or not is_mixed(case.target, case.after):
        return None
    row = compute_row(ledger)
    if row.base.value <= 0 or _gains(row):
        return None
    price = cost(row, ledger)
    evidence = "; ".join(
        [f"with mixed precision computing went from {from_to(row, ledger)} a step", *_reasons(case)]
    )
    costly = is_material(price.value, ledger) and is_clear(price, ledger)
    return Finding(
        "amp_without_effect",
        price if costly else None,
        share_of(price.value, ledger) if costly else None,
        evidence,
        _REMEDY,
        takes=all_of("layout_copies", "launch_bound", "optimizer_unfused"),
    )


def _gains(row: Row) -> bool:
    """Whether computing is surely faster, by a part that is worth it."""
    return (
        row.delta.high is not None
        and row.delta.high < 0
        and row.delta.value < -EXPECTED_GAIN * row.base.value
    )


def is_mixed(manifest: RunManifest, evidence: Evidence) -> bool:
    """Whether a run trains in mixed precision, by its setting or by what its hooks saw."""
    said = manifest.config.get("precision")
    return str(said) not in FULL_PRECISIONS if said else bool(evidence.autocast)


def _reasons(case: Case) -> Iterator[str]:
    before, after = case.before.windows, case.after.windows
    if after is None:
        yield "no kernels were captured (--kernels) that would say why"
        return
    casts = moving_ns(after) - (moving_ns(before) if before else 0.0)
    if casts > OFTEN_CAST * after.busy_ns:
        yield f"casts and layout copies add {duration(casts)} a captured step, {significant(moving_calls(after))} calls"
    if after.tensor_core_share is not None and after.tensor_core_share < FEW_ON_TENSOR_CORES:
        yield f"{percent(after.tensor_core_share, 0)} of matrix work runs on Tensor Cores: shapes, layout, or operators that stay in fp32"
    if after.launch_bound_share is not None and after.launch_bound_share > LAUNCH_BOUND:
        yield f"the device waits for {percent(after.launch_bound_share, 0)} of its work to be launched"
    if after.matrix_share < FEW_ON_TENSOR_CORES:
        yield f"matrix work, which alone can gain, is {percent(after.matrix_share, 0)} of the kernels' time"
    if after.on_host:
        yield "it runs on a CPU, where the format helps only with instructions for it (AMX, AVX512-BF16)"
