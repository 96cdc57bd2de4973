"""Device time by module, and by the line that calls it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.frame.columns import names_and_codes
from profkit.frame.estimate import Ints
from profkit.vocab import Phase


@dataclass(frozen=True)
class ModuleTime:
    """A module's time on the device, in ns per captured step of a rank, forward and backward."""

    module: str
    line: str | None
    ns: float
    backward_ns: float
    share: float
    """The share of all work of the captured steps."""


def module_times(kernels: pa.Table, own: Ints, scale: float) -> tuple[ModuleTime, ...]:
    """Return the time of each module and line, the longest first; empty if none is known.

    `own` is the time of each row, and `scale` makes it a mean.
    """
    names, module = names_and_codes(kernels["module"])
    lines, line = names_and_codes(kernels["line"])
    phases, phase = names_and_codes(kernels["phase"])
    known = np.flatnonzero(module >= 0)
    back_code = -2
    if Phase.BACKWARD.value in phases:
        back_code = phases.index(Phase.BACKWARD.value)
    is_back = phase[known] == back_code
    both = module[known] * (len(lines) + 1) + line[known] + 1
    keys, row = np.unique(both, return_inverse=True)
    total = np.bincount(row, weights=own[known], minlength=len(keys))
    back = np.bincount(row, weights=own[known] * is_back, minlength=len(keys))
    found = []
    for place in np.argsort(-total, kind="stable").tolist():
        name, at = divmod(int(keys[place]), len(lines) + 1)
        where = lines[at - 1] if at else None
        ns = float(total[place])
        share = ns / max(float(own.sum()), 1.0)
        found.append(ModuleTime(names[name], where, ns * scale, float(back[place]) * scale, share))
    return tuple(found)


@dataclass(frozen=True)
class ModuleChange:
    """A module's time on the devices of two runs, in ns per captured step of the base's batch."""

    module: str
    line: str | None
    base_ns: float
    target_ns: float

    @property
    def delta_ns(self) -> float:
        return self.target_ns - self.base_ns


def compare_modules(
    base: Sequence[ModuleTime], target: Sequence[ModuleTime]
) -> tuple[ModuleChange, ...]:
    """Return the modules of two runs, the largest change first; none unless both know some.

    A module may be called in several lines, and lines move: its first line is shown.
    """
    if not base or not target:
        return ()
    sums: tuple[defaultdict[str, float], ...] = (defaultdict(float), defaultdict(float))
    lines: dict[str, str | None] = {}
    for side, times in zip(sums, (target, base), strict=True):
        for each in times:
            side[each.module] += each.ns
            lines.setdefault(each.module, each.line)
    changes = []
    for name, line in lines.items():
        changes.append(ModuleChange(name, line, sums[1][name], sums[0][name]))
    return tuple(sorted(changes, key=lambda each: -abs(each.delta_ns)))
