"""Peak rates of devices for dense matrices.

They are those that NVIDIA publishes, in TFLOP/s, each compared with the source in its row. Many
sources state rates for sparse matrices, which are twice as high. Rates with Tensor Cores accumulate
in fp32, as PyTorch does. They hold at the clock in MHz; null if its rates have several.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_COLUMNS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8")
_TENSOR: Final = frozenset(_COLUMNS[1:])

_TABLE: Final = """
V100-SXM2          1530  15.7  -     125    -      -       # Lightning, NVIDIA's A100 paper
V100-PCIE          1367  14.0  -     112    -      -       # Lightning, NVIDIA's forum 244727
T4                 1590  8.1   -     65     -      -       # Lightning
A100               1410  19.5  156   312    312    -       # Lightning, NVIDIA's A100 paper
A30                1440  10.3  82    165    165    -       # sysrqmts.com: clock and 56 SMs
A40                1740  37.4  74.8  149.7  149.7  -       # A40 data sheet, as ecer.com shows it
A10                1695  31.2  62.5  125    125    -       # Lightning, which calls it A10G
RTX A6000          1800  38.7  77.4  154.8  154.8  -       # Lightning: int8 is twice bf16
GeForce RTX 3090   1695  35.6  35.6  71     71     -       # NVIDIA's GA102 paper, as many quote it
L4                 2040  30.3  60    121    121    242     # Lightning, L4 data sheet
L40S               -     91.6  183   362    362    733     # L40S data sheet, as mullet.se shows it
GeForce RTX 4090   2520  82.6  82.6  165.2  165.2  330.3   # waredb.com, NVIDIA's Ada paper 2.1
H100 80GB HBM3     1830  66.9  494.7 989.4  989.4  1978.9  # Lightning, glennklockwood.com
H100 PCIe          1620  51.2  378   756    756    1513    # Lightning, NVIDIA's forum 244727
H100 NVL           -     -     418   835    835    1671    # torchtitan: bf16; twice for fp8
H200               1830  66.9  494.7 989.4  989.4  1978.9  # torchtitan, glennklockwood.com
H200 NVL           -     60    418   835    835    1671    # 836 measured on one, at up to 1785 MHz
B200               -     75    1100  2250   2250   4500    # HGX B200 data sheet, torchtitan: bf16
"""
"""By the name that the driver has for a device. B200 is that of HGX and DGX systems.

Lightning is `_CUDA_FLOPS` of `lightning/fabric/utilities/throughput.py`, and torchtitan
`get_peak_flops`. A test compares the rates with the number of SMs, their operations and the clock.
"""


class Peaks(NamedTuple):
    """The rates of one device in operations per second, by precision."""

    device: str
    rates: dict[str, float]
    clock_mhz: float | None = None
    """The clock of the rates with Tensor Cores."""


def find_peaks(models: Sequence[str]) -> Peaks | None:
    """Return the rates of a machine's GPUs; `None` if they differ, or are not in the table."""
    found: list[tuple[int, Peaks | None]] = [(0, None)]
    for line in _TABLE.strip().splitlines():
        name, clock, *rates = line.partition("#")[0].rsplit(None, 1 + len(_COLUMNS))
        pattern = re.compile(
            rf"(?<![\w-]){re.escape(name)}(?!\w)(?! (?:Ti|Super|D|Laptop|Max-Q)\b)", re.IGNORECASE
        )
        if models and all(map(pattern.search, models)):
            known = zip(_COLUMNS, rates, strict=True)
            per_s = {precision: float(rate) * 1e12 for precision, rate in known if rate != "-"}
            mhz = float(clock.replace("-", "0")) or None
            found.append((len(name), Peaks(f"{name} (published)", per_s, mhz)))
    return max(found, key=lambda each: each[0])[1]


def has_clock(precisions: Sequence[str]) -> bool:
    """Return true if the table's clock is that of these precisions."""
    return set(precisions) <= _TENSOR
