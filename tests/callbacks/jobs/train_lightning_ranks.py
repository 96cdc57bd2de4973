"""A Lightning training on two ranks, the second of which Lightning starts itself.

Each rank writes a file of its own: `rank-<rank>.json`.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

import torch  # noqa: E402  # Lightning warns as it is imported
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from profkit.callbacks.lightning import ProfkitCallback  # noqa: E402


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40, 16), torch.randint(0, 4, (40,)))
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ProfkitCallback()],
    )
    trainer.fit(Net(), DataLoader(data, batch_size=4))
    Path(f"rank-{trainer.global_rank}.json").write_text(json.dumps({"steps": trainer.global_step}))


if __name__ == "__main__":
    main()
