"""A tiny GPT-2 under the Trainer of transformers, imported in the order of `run_clm.py`."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time

if sys.argv[1] == "model":
    from transformers import GPT2Config, GPT2LMHeadModel

import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    HfArgumentParser,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import check_min_version
from transformers.utils.versions import require_version

if sys.argv[1] == "trainer":
    from transformers import GPT2Config, GPT2LMHeadModel

import torch
from torch.utils.data import Dataset

STEPS = 20
check_min_version("4.46.0")  # type: ignore[no-untyped-call]
require_version("torch>=2.4")
logging.getLogger("transformers").setLevel(logging.ERROR)
assert CONFIG_MAPPING["gpt2"] is GPT2Config
assert GPT2Config in MODEL_FOR_CAUSAL_LM_MAPPING
assert HfArgumentParser is transformers.HfArgumentParser


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Seeded sequences, each of which is its own label."""

    def __init__(self) -> None:
        own = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, 64, (STEPS * 4, 16), generator=own)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Slow(TrainerCallback):
    """Steps as long as those of a small model."""

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        time.sleep(0.02)


def main() -> None:
    set_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    assert type(model) is GPT2LMHeadModel
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=os.path.join(folder, "out"),
            per_device_train_batch_size=4,
            max_steps=STEPS,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Slow()])
        trainer.remove_callback(PrinterCallback)
        done = trainer.train()
        assert get_last_checkpoint(folder) is None  # type: ignore[no-untyped-call]
    state = model.state_dict()
    weights = b"".join(state[name].numpy().tobytes() for name in sorted(state))
    print("loss", done.global_step, repr(done.training_loss))
    print("digest", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
