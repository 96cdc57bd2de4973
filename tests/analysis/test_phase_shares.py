"""Intervals of the shares of a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from profkit.analysis.phase_shares import estimate_parts


def test_no_interval_of_a_part_is_impossible() -> None:
    """On a device, the forward of a step may end in the next one."""
    random = np.random.default_rng(0)
    wall = random.integers(90_000_000, 110_000_000, 24)
    forward = wall.copy()
    forward[::2] += 60_000_000
    forward[1::2] -= 62_000_000
    unknown = wall - forward
    assert (unknown < 0).any()
    costs: Any = SimpleNamespace(steps=24, ranks=1, wall_ns=wall)
    found = {each[0]: each[1:] for each in estimate_parts(costs, {"f": forward, "u": unknown})}
    for time, share in found.values():
        assert time.low is not None
        assert share.low is not None
        assert share.high is not None
        assert time.low >= 0
        assert 0 <= share.low <= share.value <= share.high <= 1
    assert found["u"][1].low == 0
    assert found["f"][1].high == 1
