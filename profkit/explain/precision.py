"""What a change of precision did to the captured steps, in parts that add up.

Only matrix work has units of its own for fewer bits. Work that is bound by memory takes the time
of its bytes. What the host launches too slowly, no precision makes faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from profkit.analysis.kernels.categories import COMMUNICATION, COPY_CATEGORIES, MATRIX_WORK
from profkit.explain.evidence_kernels import MOVING
from profkit.explain.kernel_ledger import LAUNCH_IDLE, KernelLedger, KernelRow

MATRIX: Final = "matrix work"
CASTS: Final = "casts and layout copies"
OTHER_WORK: Final = "other kernels"
COPIES: Final = "copies between host and device"
EXCHANGE: Final = "communication"
LAUNCHES: Final = "idle: the host launches late"
IDLE: Final = "idle for other reasons"
PARTS: Final = (MATRIX, CASTS, OTHER_WORK, COPIES, EXCHANGE, LAUNCHES, IDLE)


@dataclass(frozen=True)
class Part:
    """A part of a captured step, in ns per captured step of the base's batch."""

    name: str
    base_ns: float
    target_ns: float

    @property
    def delta_ns(self) -> float:
        return self.target_ns - self.base_ns

    @property
    def ratio(self) -> float | None:
        """The target's time as a share of the base's; null if the base has none."""
        return self.target_ns / self.base_ns if self.base_ns else None


@dataclass(frozen=True)
class PrecisionAccount:
    """The captured steps of two runs of different precision; the parts add up to the steps."""

    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        return next(each for each in self.parts if each.name == name)

    @property
    def base_ns(self) -> float:
        return sum(each.base_ns for each in self.parts)

    def share(self, name: str) -> float:
        """Return a part's share of the base's captured step."""
        return self.part(name).base_ns / self.base_ns if self.base_ns else 0.0


def account_for(found: KernelLedger) -> PrecisionAccount:
    """Sum up the rows of the captured steps by what precision can do for them."""
    sums = {name: [0.0, 0.0] for name in PARTS}
    for row in found.rows:
        own = sums[_part_of(row)]
        own[0] += row.base_ns
        own[1] += row.target_ns
    return PrecisionAccount(tuple(Part(name, *both) for name, both in sums.items()))


def _part_of(row: KernelRow) -> str:
    if not row.category:
        return LAUNCHES if row.name == LAUNCH_IDLE else IDLE
    if row.category in MATRIX_WORK:
        return MATRIX
    if row.category in MOVING:
        return CASTS
    if row.category == COMMUNICATION:
        return EXCHANGE
    if row.category in COPY_CATEGORIES.values():
        return COPIES
    return OTHER_WORK
