"""Makes a workload ready to train: final settings, data, model, driver and process group."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError, UsageError
from profkit.instrument.loop_recorder import LoopRecorder
from profkit.text import safe_text
from profkit.workloads.base import Build, Outcome, Parts, Settings, Workload, wait_passively
from profkit.workloads.training.driver import Kit
from profkit.workloads.training.loop import Driver, Plan, Target, Tell, Training
from profkit.workloads.training.samples import BadSamples
from profkit.workloads.training.settings import Seat, check, final_config

__all__ = ["ReadyJob", "Seat", "check", "final_config", "find_data", "gpu_count", "prepare"]


@dataclass(frozen=True)
class ReadyJob:
    """A workload that is ready to train."""

    config: Mapping[str, Any]
    device: str
    _drive: Callable[[], Driver]
    _plan: Plan
    _bad: BadSamples
    _kit: Kit

    def share(self, text: str) -> str:
        """Return the text of rank 0 on every rank."""
        return self._kit.share(text)

    def train(self, recorder: LoopRecorder, tell: Tell) -> Outcome:
        """Wrap the model for its ranks, now that the recorder's hooks are in place, and train."""
        try:
            return Training(self._drive(), self._plan, self._bad, recorder, tell).run()
        finally:
            self._bad.close()
            self._kit.leave()


def prepare(workload: Workload, settings: Settings, seat: Seat) -> ReadyJob:
    """Find the data, build the model and join the ranks, without training."""
    wait_passively()
    # Each rank of this machine gets its share of the cores; Paddle's default is one thread.
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if seat.world_size > 1 else 1
    share = max(1, len(os.sched_getaffinity(0)) // ranks_here)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
    config = final_config(workload, settings, seat)
    target = Target.parse(settings.until)
    root = find_data(workload, settings)
    bad = BadSamples(settings.bad_samples)
    kit = _open_kit(settings.framework, config, seat)
    build = Build(config, root, bad)
    parts = workload.builders[settings.framework](build)
    reduced = "; ".join(filter(None, (config["reduced"], *_departures(parts, seat))))
    config |= {"reduced": reduced, **parts.notes}
    other_loader = workload.dali(build) if settings.dali and workload.dali else None
    plan = _plan(settings, config, parts, target)
    shown = {**config, "steps": plan.steps, "threads": kit.threads}
    del shown["rank"]

    drive = functools.partial(kit.driver, parts, config, bad, other_loader)
    return ReadyJob(shown, config["device"], drive, plan, bad, kit)


def _open_kit(framework: str, config: Mapping[str, Any], seat: Seat) -> Kit:
    """Import the framework, and join its ranks."""
    if framework == "torch":
        from profkit.workloads.training.torch_driver import open_torch

        return open_torch(config, seat)
    from profkit.workloads.training.paddle_driver import open_paddle

    return open_paddle(config, seat)


def _departures(parts: Parts, seat: Seat) -> list[str]:
    """Return where the builder's choices and this machine depart from the published settings."""
    departures = []
    for name, note in parts.notes.items():
        if "(published: " in str(note):
            departures.append(f"{name.replace('_', ' ')}: {note}")
    if parts.sync_bn and seat.world_size > 1 and seat.gpu is None:  # no framework has it on CPUs
        departures.append("batch norm of each rank alone (published: over all ranks)")
    return departures


def find_data(workload: Workload, settings: Settings) -> Path | None:
    """Return the root of the data set: the user's own, or the generated one, made if needed."""
    if settings.data == "synthetic":
        return None
    if settings.data == "generated":
        return workload.generate()
    path = Path(settings.data)
    if not path.exists():
        raise UnreadableError(
            f"{safe_text(settings.data)}: no such folder; --data takes 'generated', 'synthetic', "
            f"or the folder of the data set ({workload.data})"
        )
    return path


def _plan(
    settings: Settings, config: Mapping[str, Any], parts: Parts, target: Target | None
) -> Plan:
    steps = config["steps"]
    if settings.epochs and settings.steps is None:
        if parts.dataset is None:
            raise UsageError("--epochs needs a data set; with --data synthetic, use --steps")
        steps = settings.epochs * max(1, len(parts.dataset) // config["global_batch_size"])
    if settings.evaluate and parts.evaluate is None:
        raise UsageError("--evaluate needs a data set with a validation part")
    return Plan(
        steps=steps,
        batch_size=config["batch_size"],
        until=target,
        max_time=settings.max_time,
        stop_at_nan=settings.nan == "stop",
        evaluate=settings.evaluate,
        epoch_ends=settings.epochs is not None,
    )


def gpu_count(framework: str) -> int:
    """Count the GPUs that the framework can use here, without initialising any."""
    if framework == "torch":
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    # Paddle warns at every start of things that nobody here can change.
    for words in ("No ccache found", "When training, we now always track"):
        warnings.filterwarnings("ignore", message=words)
    import paddle

    return paddle.device.cuda.device_count() if paddle.device.is_compiled_with_cuda() else 0
