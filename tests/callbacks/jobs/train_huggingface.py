"""Trainings of a tiny BERT: `train_huggingface.py CALLBACKS...`.

Each number trains once with as many callbacks; -1 trains with one that fails.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from profkit.callbacks.huggingface import ProfkitCallback
from tests.callbacks.jobs.shared import break_callbacks, run_shown

warnings.simplefilter("ignore")


class Recorded(Trainer):
    """A trainer that shows the losses of its batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.losses: list[float] = []

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


def train(callbacks: int, accumulate: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    data = [{"input_ids": torch.randint(0, 32, (8,)), "labels": index % 2} for index in range(30)]
    arguments = TrainingArguments(
        "out",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        dataloader_pin_memory=False,
        accelerator_config={"dispatch_batches": accumulate > 1},
    )
    make = functools.partial(Recorded, train_dataset=data, eval_dataset=data[:8])
    model = BertForSequenceClassification(config)
    if callbacks == 1:
        trainer = run_shown("callbacks.huggingface", Trainer=make, model=model, args=arguments)[
            "trainer"
        ]
    else:
        trainer = make(model, arguments)
        trainer.callback_handler.callbacks += [ProfkitCallback() for _ in range(abs(callbacks))]
    trainer.train()
    trainer.evaluate()
    return {
        "callbacks": callbacks,
        "accumulate": accumulate,
        "losses": trainer.losses,
        "steps": trainer.state.global_step,
    }


def main() -> None:
    torch.set_num_threads(1)
    for callbacks in map(int, sys.argv[1:]):
        if callbacks < 0:
            break_callbacks()
        for accumulate in (1, 2):
            print("training:", json.dumps(train(callbacks, accumulate)), flush=True)
    raise SystemExit(3)


if __name__ == "__main__":
    main()
