"""Record the training of `paddle.Model.fit(..., callbacks=[ProfkitCallback()])`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from paddle.callbacks import Callback
from paddle.distributed import ParallelEnv

from profkit.callbacks._recording import (
    CHECKPOINT,
    EVALUATION,
    Recording,
    begins_training,
    hook,
    report,
)

Logs = Mapping[str, Any] | None


class ProfkitCallback(Callback):
    """Reports a model's steps, evaluations and checkpoints. A step is an optimizer step."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self._epoch = 0

    @begins_training
    def on_train_begin(self, logs: Logs = None) -> None:
        self.recording.begin()
        if self.recording.is_open:
            self.recording.name_calls(self.model, "save", CHECKPOINT)

    @hook
    def on_epoch_begin(self, epoch: int | None = None, logs: Logs = None) -> None:
        self._epoch = epoch or 0

    on_train_batch_begin = report("begin_step")

    @hook
    def on_train_batch_end(self, step: int | None = None, logs: Logs = None) -> None:
        known = logs or {}
        loss = sum(known["loss"]) if "loss" in known else None
        self.recording.end_batch(loss, known.get("batch_size", 0) // ParallelEnv().nranks)
        if self.recording.tracker.stepped:
            self.recording.end_step(self._epoch, statistics.fmean)

    on_eval_begin = report("begin_aside", (EVALUATION,))
    on_eval_end = report("end_aside")
    on_train_end = report("end")
