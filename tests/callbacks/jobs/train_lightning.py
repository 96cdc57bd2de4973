"""Lightning trainings: `train_lightning.py PACKAGE CALLBACKS...`.

Each number trains once with as many callbacks; -1 trains with one that fails.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import sys
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger(f"{sys.argv[1]}.utilities.rank_zero").setLevel(logging.ERROR)
L = importlib.import_module(sys.argv[1])

from profkit.callbacks.lightning import ProfkitCallback  # noqa: E402
from tests.callbacks.jobs.shared import break_callbacks, run_shown  # noqa: E402  # as above


class Net(L.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(callbacks: int, accumulate: int) -> dict[str, Any]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(42, 16), torch.randint(0, 4, (42,)))
    net = Net()
    make = functools.partial(
        L.Trainer,
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        val_check_interval=5,
        log_every_n_steps=1,
        logger=importlib.import_module(f"{sys.argv[1]}.loggers").CSVLogger("logs"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if callbacks == 1:
        trainer = run_shown("callbacks.lightning", Trainer=make)["trainer"]
    else:
        trainer = make(callbacks=[ProfkitCallback() for _ in range(abs(callbacks))])
    trainer.fit(net, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=20))
    trainer.validate(net, DataLoader(data, batch_size=4), verbose=False)
    return {
        "callbacks": callbacks,
        "accumulate": accumulate,
        "losses": net.losses,
        "steps": trainer.global_step,
    }


def main() -> None:
    torch.set_num_threads(1)
    for callbacks in map(int, sys.argv[2:]):
        if callbacks < 0:
            break_callbacks()
        for accumulate in (1, 2):
            print("training:", json.dumps(train(callbacks, accumulate)), flush=True)
    print(
        "callbacks are those of", ProfkitCallback.__bases__[0].__module__.partition(".callbacks")[0]
    )
    raise SystemExit(3)


if __name__ == "__main__":
    main()
