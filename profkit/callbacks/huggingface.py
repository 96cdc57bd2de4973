"""Records what a Hugging Face trainer trains: `Trainer(callbacks=[ProfkitCallback()])`.

After a step the trainer logs, evaluates and saves, in this order, and tells of each when it is done;
which of them it will do, its control says beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.data_loader import DataLoaderDispatcher  # type: ignore[import-untyped]  # it has no types
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from profkit.callbacks._recording import (
    CHECKPOINT,
    EVALUATION,
    LOGGING,
    Recording,
    begins_training,
    hook,
)


class ProfkitCallback(TrainerCallback):
    """Tells profkit of a trainer's steps, evaluations, checkpoints and logs."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._epoch = 0

    @begins_training
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.begin()
        self._count_samples(kwargs.get("train_dataloader"))

    @hook
    def _count_samples(self, loader: Any) -> None:
        """Of an iterable data set the first rank fetches the batches of all ranks; else what is fetched is what is trained on."""
        if isinstance(loader, DataLoaderDispatcher):
            self.recording.count_handed_out(loader)

    @hook
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._epoch = int(state.epoch or 0)
        self.recording.begin_step()

    @hook
    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.end_batch()

    @hook
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.end_batch()
        self.recording.end_step(self._epoch, sum)  # it has divided them
        self._begin_next(control)

    @hook
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.end_aside()

    @hook
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin_next(control)

    @hook
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs:  # an evaluation logs too, in its midst
            self._begin_next(control)

    @hook
    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin_next(control)

    @hook
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin_next(control)

    @hook
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.recording.end()

    def _begin_next(self, control: TrainerControl) -> None:
        """One of the parts between two steps is over, and the next that is due begins."""
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
