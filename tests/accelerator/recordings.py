"""profkit's own recorder, hooks, timer and writer, in the simulated ranks of one process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profkit.clock import Anchor
from profkit.instrument.device import DeviceTimer, note_no_events
from profkit.instrument.frameworks.base import Framework, Seams
from profkit.instrument.guard import Patches, guarded
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import COLUMNS
from profkit.instrument.tracking.tracker import Tracker
from profkit.run.late_sink import LateSink
from profkit.trace import RankManifest, RankWriter
from tests.accelerator.devices import Device
from tests.accelerator.hosts import BEGIN_NS

BEGIN_REALTIME_NS = 1_700_000_000_000_000_000
"""The time of day at `BEGIN_NS`."""


class Recording:
    """One rank's recording: what `profkit.run.job.Job` wires, without its threads."""

    def __init__(
        self,
        framework: Framework,
        device: Device,
        *,
        largest_pool: int = 4_096,
        is_measured: Callable[[int], bool] = lambda step: True,
    ) -> None:
        self.device = device
        self.timer: DeviceTimer | None = None
        self._framework = framework
        self._largest_pool = largest_pool
        self.sink = LateSink()
        self.recorder = Recorder(self.sink, clock=device.host, is_measured=is_measured)
        self.tracker = Tracker(self.recorder, on_training=self._begin, clock=device.host)
        self.hooks = RankHooks()
        append = self.sink.appender
        seams = Seams(self.tracker, append("collectives"), append("samples"), append("events"))
        self.hooks.install(framework, seams)

    def _begin(self) -> None:
        """Time the device from the first backward on, as a job does."""
        device, samples = self._framework.device(), self.sink.appender("samples")
        events = self.sink.appender("events")
        if device is None:
            note_no_events(events)
            return
        host = self.device.host
        self.timer = DeviceTimer(
            device,
            self.sink.appender("spans"),
            clock=host,
            largest_pool=self._largest_pool,
            samples=samples,
            events=events,
        )
        self.recorder.time_device(self.timer)
        host.on_tick = functools.partial(guarded("device times", self.timer.collect, None), False)

    def finish(self) -> None:
        """End the job's loop; its files are written by `write`."""
        self.tracker.finish()
        self.recorder.stop()
        self.device.host.on_tick = None

    def write(self, run: Path, world_size: int) -> None:
        """Write the rank's files with profkit's own writer."""
        host = self.device.host
        manifest = RankManifest(
            host.number,
            "simulated",
            1_000 + host.number,
            f"cuda:{host.number}",
            Anchor(BEGIN_NS, BEGIN_REALTIME_NS, 100),
            host.number,
            world_size,
            self._framework.name,
        )
        complete = None
        if self.timer is not None:
            complete = guarded("device times", self.timer.collect, None)
        writer = RankWriter(
            run, manifest, rows=self.sink.rows, columns=COLUMNS, complete=complete, clock=host
        )
        writer.close()


class RankHooks:
    """The hooks of one rank. Ranks share a process, so each one's are there in its turn only."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._steps: list[tuple[dict[int, Any], dict[int, Any]]] = []

    def install(self, framework: Framework, seams: Seams) -> None:
        """Install the framework's hooks, and remove them until `enter`."""
        step_hooks = _optimizer_hooks()
        before = [dict(hooks) for hooks in step_hooks]
        with _noting_replacements(self._replaced):
            self._patches = framework.install(seams)
        for hooks, known in zip(step_hooks, before, strict=True):
            own = {number: hook for number, hook in hooks.items() if number not in known}
            self._steps.append((hooks, own))
        self.leave()

    def enter(self) -> None:
        for owner, name, _, ours in self._replaced:
            setattr(owner, name, ours)
        for hooks, own in self._steps:
            hooks.update(own)

    def leave(self) -> None:
        for owner, name, before, _ in reversed(self._replaced):
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        for hooks, own in self._steps:
            for number in own:
                hooks.pop(number, None)


def _optimizer_hooks() -> tuple[dict[int, Any], ...]:
    """Return torch's own lists of hooks around every optimizer's step, if torch is in use."""
    if "torch" not in sys.modules:
        return ()
    from torch.optim import optimizer as torch_optimizer

    return (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )


@contextmanager
def _noting_replacements(replaced: list[tuple[Any, str, Any, Any]]) -> Iterator[None]:
    """Note what `Patches` replaces: its owner, name, and the values before and after."""
    original = Patches.replace

    def replace(self: Patches, owner: Any, name: str, wrap: Any) -> None:
        before = vars(owner).get(name)
        original(self, owner, name, wrap)
        replaced.append((owner, name, before, vars(owner)[name]))

    Patches.replace = replace  # type: ignore[method-assign]
    try:
        yield
    finally:
        Patches.replace = original  # type: ignore[method-assign]
