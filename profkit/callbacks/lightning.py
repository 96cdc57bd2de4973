"""Record the training of a Lightning trainer: `Trainer(callbacks=[ProfkitCallback()])`.

A step is an optimizer step, by `trainer.global_step`. Optimizers that step on the same batch share
one. The forward is the whole of `training_step`. Without the callback, its work outside of modules
looks like a part of the optimizer, which calls it.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from typing import TYPE_CHECKING, Any

from profkit.callbacks._recording import (
    CHECKPOINT,
    EVALUATION,
    LOGGING,
    Recording,
    begins_training,
    hook,
    report,
)
from profkit.instrument.batches import count_samples

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The names under which Lightning is imported."""


def _callback_class() -> Any:
    """Return the class of callbacks of the Lightning that the job imports, or has installed."""
    for package in sorted(PACKAGES, key=lambda package: package not in sys.modules):
        try:
            return importlib.import_module(package).Callback
        except ModuleNotFoundError as error:
            missing = error
    raise missing


if not TYPE_CHECKING:
    Callback = _callback_class()


class ProfkitCallback(Callback):
    """Reports a trainer's steps, evaluations, checkpoints and logs to profkit."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._global_step = 0

    @begins_training
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.recording.begin()
        if not self.recording.is_open:
            return
        self.recording.name_calls(trainer, "save_checkpoint", CHECKPOINT)
        for logger in trainer.loggers:
            self.recording.name_calls(logger, "log_metrics", LOGGING)
        if pl_module.automatic_optimization:
            self.recording.name_calls(trainer.strategy, "training_step")

    @hook
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._global_step = trainer.global_step

    on_train_batch_start = report("begin_step")

    @hook
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.recording.end_batch(samples=count_samples(batch))
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            parts = trainer.accumulate_grad_batches
            # The trainer has divided the losses.
            self.recording.end_step(
                trainer.current_epoch, lambda losses: statistics.fmean(losses) * parts
            )

    on_sanity_check_start = on_validation_start = report("begin_aside", (EVALUATION,))
    on_sanity_check_end = on_validation_end = report("end_aside")
    on_train_end = on_exception = report("end")
