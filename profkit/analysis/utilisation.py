"""MFU: the share of a step that its useful operations would take at the device's peak.

It is a product of factors, each of which takes a part of the step: the parts add up to it. With
several precisions, operations count by the time that they take at the peak of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.kernels.categories import MATRIX_WORK
from profkit.analysis.kernels.windows import KernelWindows
from profkit.analysis.peaks import Peaks, find_peaks, has_clock
from profkit.trace import Trace
from profkit.vocab import ALL_FLOPS, OPERATIONS, UNCOUNTED, USEFUL_FLOPS

MEASURE = "run 'profkit ceilings' on this machine, and then this report"
BUSY, MATRICES, CLOCK, RATE = "busy", "matrix kernels", "clock", "rate"
TOGETHER = "busy, matrix kernels and rate"
USEFUL = "useful"
_CLOCK_METRIC = "sm_clock_mhz"


@dataclass(frozen=True)
class Factor:
    """One factor of MFU, and the part of a step that it takes; null if it is not known."""

    name: str
    share: float | None
    lost_ns: float | None


@dataclass(frozen=True)
class Utilisation:
    """MFU of one device, as the mean over ranks."""

    step_ns: float
    useful_flops: Mapping[str, float]
    """Operations per step by precision: forward and backward, less what was computed again."""
    flops: Mapping[str, float]
    factors: tuple[Factor, ...]
    useful_ns: float | None
    """The time of the useful operations at the peak; null if the peak is not known."""
    peaks: Peaks | None
    at_least: bool
    """True if some operators could not be counted."""
    missing: str
    """Why MFU or a factor is not known, and what would help."""

    @property
    def mfu(self) -> float | None:
        return self.useful_ns and self.useful_ns / self.step_ns


def find_utilisation(
    trace: Trace, step_ns: float, kernels: KernelWindows | None, ceilings: Ceilings | None
) -> Utilisation | None:
    """Return the MFU of a run; `None` if its operations were not counted."""
    counts = _read_counts(trace.samples)
    useful, flops = _by_precision(counts, USEFUL_FLOPS), _by_precision(counts, ALL_FLOPS)
    if not flops or not step_ns > 0:
        return None
    peaks, missing = _choose_peaks(trace, tuple(flops), ceilings)
    useful_ns: float | None = None
    factors: tuple[Factor, ...] = ()
    if peaks is not None:
        useful_ns, all_ns = _at_peak(useful, peaks), _at_peak(flops, peaks)
        clock = None
        if peaks.clock_mhz and has_clock(tuple(flops)):
            clock = _mean_clock(trace.samples, peaks.clock_mhz)
        busy_ns = matrix_ns = None
        if kernels is not None and kernels.kernels:
            busy_ns = kernels.busy_ns
            matrix_ns = sum(kernels.by_category.get(name, 0.0) for name in MATRIX_WORK)
        factors = factorise(step_ns, useful_ns, all_ns, busy_ns, matrix_ns, clock)
        if not matrix_ns:
            missing = "kernels were not captured: record with --kernels to split these factors"
    at_least = counts.get(UNCOUNTED, 0.0) > 0
    return Utilisation(step_ns, useful, flops, factors, useful_ns, peaks, at_least, missing)


def factorise(
    step_ns: float,
    useful_ns: float,
    all_ns: float,
    busy_ns: float | None = None,
    matrix_ns: float | None = None,
    clock: float | None = None,
) -> tuple[Factor, ...]:
    """Return factors whose product is `useful_ns / step_ns`, and whose losses fill the rest.

    `useful_ns` and `all_ns` are times at the peak, and `clock` is the share of the peak's clock.
    """
    useful = Factor(USEFUL, useful_ns / all_ns, all_ns - useful_ns)
    if not busy_ns or not matrix_ns:
        unknown = [Factor(name, None, None) for name in (BUSY, MATRICES, RATE)]
        return (*unknown, Factor(TOGETHER, all_ns / step_ns, step_ns - all_ns), useful)
    found = [
        Factor(BUSY, busy_ns / step_ns, step_ns - busy_ns),
        Factor(MATRICES, matrix_ns / busy_ns, busy_ns - matrix_ns),
    ]
    at_clock_ns = all_ns
    if clock:
        at_clock_ns = all_ns / clock
        found.append(Factor(CLOCK, clock, at_clock_ns - all_ns))
    found.append(Factor(RATE, at_clock_ns / matrix_ns, matrix_ns - at_clock_ns))
    return (*found, useful)


def _read_counts(samples: pa.Table) -> dict[str, float]:
    """Return the means over windows and ranks: each has one row of `UNCOUNTED`."""
    own = samples.filter(pc.equal(samples["source"], OPERATIONS))
    found: dict[str, float] = {}
    metrics = own["metric"].to_pylist()
    for metric, value in zip(metrics, own["value"].to_pylist(), strict=True):
        found[str(metric)] = found.get(str(metric), 0.0) + value
    windows = max(1, metrics.count(UNCOUNTED))
    return {metric: value / windows for metric, value in found.items()}


def _by_precision(counts: Mapping[str, float], prefix: str) -> dict[str, float]:
    found = {}
    for metric, value in sorted(counts.items()):
        if metric.startswith(prefix):
            found[metric.removeprefix(prefix)] = value
    return found


def _at_peak(flops: Mapping[str, float], peaks: Peaks) -> float:
    return sum(count / peaks.rates[precision] * 1e9 for precision, count in flops.items())


def _choose_peaks(
    trace: Trace, precisions: Sequence[str], ceilings: Ceilings | None
) -> tuple[Peaks | None, str]:
    """Return the published peaks or else those measured, or what is missing."""
    devices = {rank.manifest.device.partition(":")[0] for rank in trace.ranks}
    if devices == {"cpu"} and len(trace.ranks) > 1:
        return None, "its ranks share the processor, so that no rank has a peak of its own"
    environment = trace.manifest.environment
    found = None
    if devices == {"cuda"}:
        found = find_peaks([str(each) for each in environment.get("gpu_models") or ()])
    if (
        found is None
        and ceilings is not None
        and (devices == {"cpu"}) == (ceilings.device == "cpu")
    ):
        found = Peaks(f"{ceilings.device} (measured)", dict(ceilings.matrix_flops_per_s))
    if found is None:
        return None, f"the peak of this device is not known: {MEASURE}"
    unknown = [name for name in precisions if not found.rates.get(name)]
    if unknown:
        return None, f"no peak is known for {', '.join(unknown)} on {found.device}"
    return found, ""


def _mean_clock(samples: pa.Table, peak_mhz: float) -> float | None:
    """Return the mean clock of the run as a share of that of the peak; null if not read."""
    own = samples.filter(pc.equal(samples["metric"], _CLOCK_METRIC))
    mean: float | None = pc.mean(own["value"]).as_py()
    return mean and mean / peak_mhz
