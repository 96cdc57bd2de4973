"""Makes a workload ready to train: final settings, data, model, driver and process group."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError, UsageError
from profkit.instrument.tracking.tracker import Tracker
from profkit.text import safe_text
from profkit.workloads.base import (
    Build,
    Outcome,
    Parts,
    Settings,
    Workload,
    share_cores,
    wait_passively,
)
from profkit.workloads.training.checkpoints import Checkpoints
from profkit.workloads.training.driver import Kit, SharedDriver, explain_memory
from profkit.workloads.training.loop import Plan, Tell, Training
from profkit.workloads.training.samples import BadSamples
from profkit.workloads.training.sampling import run_length
from profkit.workloads.training.settings import Seat, check, final_config
from profkit.workloads.training.target import Target

__all__ = ["ReadyJob", "Seat", "check", "final_config", "find_data", "gpu_count", "prepare"]


@dataclass(frozen=True)
class ReadyJob:
    """A workload that is ready to train."""

    config: Mapping[str, Any]
    device: str
    _drive: Callable[[], SharedDriver]
    _plan: Plan
    _bad: BadSamples
    _kit: Kit
    _checkpoints: Checkpoints

    def share(self, text: str) -> str:
        """Return the text of rank 0 on every rank."""
        return self._kit.share(text)

    def train(self, tell: Tell, tracker: Tracker | None = None) -> Outcome:
        """Wrap the model for its ranks, now that hooks are in place, and train."""
        plan = self._plan
        try:
            driver = self._drive()
            training = Training(driver, plan, self._bad, tell, tracker, self._checkpoints)
            return training.run()
        except Exception as error:
            explain_memory(error, plan.batch_size)
            raise
        finally:
            self._bad.close()
            self._kit.leave()


def prepare(workload: Workload, settings: Settings, seat: Seat) -> ReadyJob:
    """Find the data, build the model and join the ranks, without training."""
    set_environment(settings.framework, seat.rank.world_size)
    config = final_config(workload, settings, seat)
    target = Target.parse(settings.until, workload.figures)
    root = find_data(workload, settings)
    bad = BadSamples(settings.bad_samples)
    kit = _open_kit(settings.framework, config, seat)
    build = Build(config, root, bad, kit.gather)
    parts = workload.builders[settings.framework](build)
    if parts.dataset is not None:
        length = run_length(config, len(parts.dataset), parts.groups)
        config |= {"steps": length.steps, "distinct_samples": len(parts.dataset)}
    elif config["epochs"]:
        raise UsageError("--epochs needs a data set; with --data synthetic, use --steps")
    if settings.warmup is None:
        config["warmup"] = min(config["warmup"], config["steps"] // 5)
    reduced = "; ".join(filter(None, (config["reduced"], *_departures(parts, seat))))
    config |= {"reduced": reduced, **kit.flags, **parts.notes}
    other_loader = workload.dali(build) if settings.dali and workload.dali else None
    if config["evaluate"] and parts.evaluate is None:
        raise UsageError("--evaluate needs a data set with a validation part")
    # A quality figure that is the target is checked after each epoch, unless the user says when.
    is_figure = target is not None and target.figure != "loss"
    plan = Plan(
        steps=config["steps"],
        batch_size=config["batch_size"],
        until=target,
        max_time=settings.max_time,
        stop_at_nan=settings.nan == "stop",
        evaluate=config["evaluate"],
        epoch_ends=settings.epochs is not None or (is_figure and not settings.evaluate_every),
        evaluate_every=settings.evaluate_every,
    )
    shown = {**config, "threads": kit.threads}
    del shown["rank"]
    checkpoints = Checkpoints(
        settings.checkpoint,
        settings.checkpoint_every,
        settings.resume,
        {**config, "workload": workload.name, "framework": settings.framework},
        kit.read,
        kit.framework.save,
        kit.gather,
    )
    drive = functools.partial(kit.driver, parts, config, bad, other_loader)
    return ReadyJob(shown, config["device"], drive, plan, bad, kit, checkpoints)


def set_environment(framework: str, world_size: int) -> None:
    """Set the variables that a framework reads when it is imported.

    Several ranks of a machine share its cores. Paddle alone would take one core, PyTorch alone
    chooses well.
    """
    wait_passively()
    if world_size > 1:
        share_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    elif framework == "paddle":
        share_cores(1)


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
    if (
        parts.sync_bn and seat.rank.world_size > 1 and seat.gpu is None
    ):  # no framework has it on CPUs
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


def gpu_count(framework: str) -> int:
    """Count the GPUs that the framework can use here, without initialising any."""
    if framework == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.device_count()
        return 0
    # Paddle warns at every start of things that nobody here can change.
    for words in ("No ccache found", "When training, we now always track"):
        warnings.filterwarnings("ignore", message=words)
    before = os.environ.get("OMP_NUM_THREADS")
    with contextlib.redirect_stderr(io.StringIO()):  # it warns of more than one thread
        import paddle
    # Paddle sets one thread at its import. Ranks that are started from here inherit our variables.
    if before is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    if paddle.device.is_compiled_with_cuda():
        return paddle.device.cuda.device_count()
    return 0
