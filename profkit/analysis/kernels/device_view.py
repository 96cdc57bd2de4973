"""Device time of a run, for reports: each device, and the mean over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow.compute as pc

from profkit.analysis.kernels.device_time import DeviceTime, device_times, waits_for_ranks
from profkit.analysis.kernels.view import chosen_ranks, host_waits
from profkit.frame.columns import rows_of_rank
from profkit.trace import Trace
from profkit.vocab import KERNELS, WINDOW_STEP

COLUMNS = ("rank", "device", "start_ns", "end_ns", "category", "launch_ns", "step")
"""The columns of the `kernels` table that are needed to sum up device time."""


@dataclass(frozen=True)
class DeviceView:
    """The devices of a run, from the first to the last work of each.

    If kernels were captured in windows of steps, these windows alone count.
    """

    devices: tuple[DeviceTime, ...]
    steps: Mapping[int, int]
    """The steps of each rank in the time that counts, at least 1."""
    in_windows: bool
    ranks_in_all: int

    @property
    def whole(self) -> DeviceTime:
        """The sum over all devices."""
        return reduce(DeviceTime.plus, self.devices)

    @property
    def device_steps(self) -> int:
        """The steps of all devices added up: a sum over it is a mean per device and step."""
        return sum(self.steps[each.rank] for each in self.devices)


def build_device_view(trace: Trace) -> DeviceView | None:
    """Return the device time of a run; `None` if no device work was recorded.

    One rank stands for a run with very many kernels.
    """
    marks = pc.and_(
        pc.equal(trace.samples["source"], KERNELS), pc.equal(trace.samples["metric"], WINDOW_STEP)
    )
    in_windows = bool(pc.any(marks).as_py())
    devices: list[DeviceTime] = []
    steps: dict[int, int] = {}
    ranks = chosen_ranks(trace, None)
    if not any(rank.size("kernels") for rank in ranks):
        return None
    samples = host_waits(trace)
    waits = waits_for_ranks(trace.collectives)
    for rank in ranks:
        kernels, _ = rank.select("kernels", COLUMNS)
        devices += device_times(kernels, samples, waits, in_windows=in_windows)
        about = rows_of_rank(trace.steps, rank.rank).num_rows
        if in_windows:
            about = len(pc.unique(kernels["step"].drop_null()))
        steps[rank.rank] = max(1, about)
    if not devices:
        return None
    return DeviceView(tuple(devices), steps, in_windows, max(len(trace.ranks), len(ranks)))
