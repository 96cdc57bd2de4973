"""Record the training of a Hugging Face trainer: `Trainer(callbacks=[ProfkitCallback()])`.

After a step the trainer logs, evaluates and saves, in this order, and reports each when it is done.
Its control says beforehand which of them it will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.data_loader import DataLoaderDispatcher  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from profkit.callbacks._recording import (
    CHECKPOINT,
    EVALUATION,
    LOGGING,
    Recording,
    begins_training,
    hook,
    report,
)


class ProfkitCallback(TrainerCallback):
    """Reports a trainer's steps, evaluations, checkpoints and logs to profkit."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._epoch = 0

    @begins_training
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.begin()
        loader = kwargs.get("train_dataloader")
        # The first rank may fetch the batches of all ranks: count what this rank is handed.
        if self.recording.is_open and isinstance(loader, DataLoaderDispatcher):
            self.recording.count_handed_out(loader)

    @hook
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._epoch = int(state.epoch or 0)
        self.recording.begin_step()

    on_substep_end = report("end_batch")

    @hook
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.end_batch()
        self.recording.end_step(self._epoch, sum)  # the trainer has divided the losses
        self._begin_next(control)

    on_epoch_begin = report("end_aside")

    @hook
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin_next(control)

    on_evaluate = on_save = on_epoch_end

    @hook
    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        logs: Mapping[str, Any] | None = kwargs.get("logs")
        if logs and "loss" in logs:  # an evaluation logs, too, before it ends
            self._begin_next(control)

    on_train_end = report("end")

    def _begin_next(self, control: TrainerControl) -> None:
        """End one of the parts between two steps, and begin the next one that is due."""
        parts = (
            (control.should_log, LOGGING),
            (control.should_evaluate, EVALUATION),
            (control.should_save, CHECKPOINT),
        )
        self.recording.end_aside()
        for is_due, name in parts:
            if is_due:
                self.recording.begin_aside(name)
                return
