"""Mixed precision is on, and the step is no faster for it."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.kernels.categories import MATRIX_WORK
from profkit.analysis.matrix import FULL_PRECISIONS
from profkit.explain.evidence import Evidence
from profkit.explain.evidence_kernels import Windows
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    compute_row,
    cost,
    from_to,
    is_clear,
    is_material,
    share_of,
)
from profkit.frame.columns import readings_of
from profkit.text import duration, percent, significant
from profkit.trace import RunManifest
from profkit.vocab import AUTOCAST

EXPECTED_GAIN = 0.05
"""Mixed precision that makes computing faster by less than this share has no effect."""

LAUNCH_BOUND_SHARE = 0.3
"""The device is launch-bound if it waits for launches for more than this share of its time."""

FEW_ON_TENSOR_CORES = 0.5
"""Mixed precision cannot gain much if a smaller share of the work is on Tensor Cores."""

MANY_CASTS_SHARE = 0.1
"""Casts are worth reporting if they add more than this share of the kernels' time."""

PRECISION = "precision"
_REMEDY = (
    "see which of these it is: NHWC and sizes that are multiples of 8, larger batches, fewer casts "
    "(whole blocks in autocast); on a CPU, check that it has the instructions; "
    "otherwise stay with fp32"
)


def find(case: Case) -> Cause | None:
    ledger = case.ledger
    if is_mixed(case.base, case.before) or not is_mixed(case.target, case.after):
        return None
    row = compute_row(ledger)
    high = row.delta.high
    is_faster = high is not None and high < 0
    if row.base.value <= 0 or (is_faster and row.delta.value < -EXPECTED_GAIN * row.base.value):
        return None
    words = [f"computing went from {from_to(row, ledger)} per step without mixed precision"]
    if not ledger.turned:
        words = [f"with mixed precision computing went from {from_to(row, ledger)} per step"]
        words += _reasons(case.before.windows, case.after.windows)
    whole = cost(row, ledger)
    price = share = None
    if is_material(whole.value, ledger) and is_clear(whole, ledger, is_recorded=True):
        price, share = whole, share_of(whole.value, ledger)
    return Cause(
        "amp_without_effect",
        price,
        share,
        "; ".join(words),
        _REMEDY,
        specific=Specific.RANK,
        rows=COMPUTE,
    )


def is_mixed(manifest: RunManifest, evidence: Evidence) -> bool:
    """Return true if a run trains in mixed precision, by its setting or by what its hooks saw."""
    precision = manifest.config.get(PRECISION)
    if precision:
        return str(precision) not in FULL_PRECISIONS
    return evidence.figure(saw_autocast)


def saw_autocast(evidence: Evidence) -> bool:
    """Return true if models were called with autocast on; false also if nothing recorded it."""
    readings = readings_of(evidence.trace.samples, "framework", AUTOCAST)
    return bool((readings["value"].to_numpy() > 0).any())


def _reasons(before: Windows | None, after: Windows | None) -> Iterator[str]:
    """Yield what the captured steps show of why there is no gain."""
    if after is None:
        yield "no kernels were captured (--kernels) that would show why"
        return
    casts = after.moving_ns - (before.moving_ns if before else 0.0)
    if casts > MANY_CASTS_SHARE * after.busy_ns:
        yield (
            f"casts and layout copies add {duration(casts)} per captured step, "
            f"{significant(after.moving_calls)} calls"
        )
    if after.tensor_core_share is not None and after.tensor_core_share < FEW_ON_TENSOR_CORES:
        yield (
            f"{percent(after.tensor_core_share, 0)} of matrix work runs on Tensor Cores: "
            "look at shapes, layout, or operators that stay in fp32"
        )
    if after.launched_late_share is not None and after.launched_late_share > LAUNCH_BOUND_SHARE:
        waited = percent(after.launched_late_share, 0)
        yield f"the device is idle for {waited} of its time because the host launches late"
    matrix_share = 0.0
    if after.busy_ns:
        matrix_ns = sum(after.by_category.get(name, 0.0) for name in MATRIX_WORK)
        matrix_share = matrix_ns / after.busy_ns
    if matrix_share < FEW_ON_TENSOR_CORES:
        matrix = percent(matrix_share, 0)
        yield f"matrix work, which alone can gain, is {matrix} of the kernels' time"
    if after.on_host:
        yield "it runs on a CPU, which is only faster with instructions for it (AMX, AVX512-BF16)"
