"""Device time of a run, for reports: each device, and the mean over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.kernels.device_time import DeviceTime, device_times, waits_for_ranks
from profkit.analysis.kernels.view import chosen_ranks, host_waits
from profkit.frame.columns import rows_of_rank
from profkit.frame.estimate import Ints
from profkit.trace import Trace
from profkit.vocab import KERNELS, WINDOW_STEP

COLUMNS = ("rank", "device", "start_ns", "end_ns", "category", "launch_ns", "step")
"""The columns of the `kernels` table that are needed to sum up device time."""


@dataclass(frozen=True)
class DeviceView:
    """The devices of a run, in its used steps from begin to end.

    If kernels were captured in windows of steps, these windows alone count, from the first to the
    last work. Without used steps it is all time between these.
    """

    devices: tuple[DeviceTime, ...]
    steps: Mapping[int, int]
    """The steps of each rank in the time that counts, at least 1."""
    in_windows: bool
    ranks_in_all: int
    in_steps: bool = False
    """True if the time is that of the used steps."""

    @property
    def whole(self) -> DeviceTime:
        """The sum over all devices."""
        return reduce(DeviceTime.plus, self.devices)

    @property
    def device_steps(self) -> int:
        """The steps of all devices added up: a sum over it is a mean per device and step."""
        return sum(self.steps[each.rank] for each in self.devices)


def build_device_view(trace: Trace, used: Ints, one: int | None = None) -> DeviceView | None:
    """Return the device time of a run's used steps; `None` if no device work was recorded.

    One rank stands for a run with very many kernels; `one` asks for that rank.
    """
    marks = pc.and_(
        pc.equal(trace.samples["source"], KERNELS), pc.equal(trace.samples["metric"], WINDOW_STEP)
    )
    in_windows = bool(pc.any(marks).as_py())
    devices: list[DeviceTime] = []
    steps: dict[int, int] = {}
    ranks = chosen_ranks(trace, one)
    if not any(rank.size("kernels") for rank in ranks):
        return None
    samples = host_waits(trace)
    waits = waits_for_ranks(trace.collectives)
    in_steps = not in_windows and len(used) > 0
    counted = trace.steps
    if in_steps:
        counted = counted.filter(pc.is_in(counted["step"], pa.array(used)))
    for rank in ranks:
        kernels, _ = rank.select("kernels", COLUMNS)
        own = rows_of_rank(counted, rank.rank)
        times, about = None, own.num_rows
        if in_steps and about:
            times = {rank.rank: (own["start_ns"].to_numpy(), own["end_ns"].to_numpy())}
        mine = None
        if waits is not None:
            mine = {each: wait for each, wait in waits.items() if each == rank.rank}
        devices += device_times(kernels, samples, mine, in_windows=in_windows, used=times)
        if in_windows:
            about = len(pc.unique(kernels["step"].drop_null()))
        steps[rank.rank] = max(1, about)
    if not devices:
        return None
    in_all = max(len(trace.ranks), len(ranks))
    return DeviceView(tuple(devices), steps, in_windows, in_all, in_steps)
