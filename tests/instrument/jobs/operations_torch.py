"""Eight steps of a model with dropout, batch norm and checkpoints; prints each loss in full."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        self.body = torch.nn.Sequential(
            torch.nn.Linear(8 * 14 * 14, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 4)
        )

    def forward(self, inputs: Any) -> Any:
        features = self.stem(inputs).relu().flatten(1)
        if "checkpoint" in sys.argv:
            return checkpoint(self.body, features, use_reentrant=False)
        return self.body(features)


torch.manual_seed(3)
model = Model()
data = torch.utils.data.TensorDataset(torch.randn(16, 3, 16, 16), torch.randint(0, 4, (16,)))
trained: Any = model
if "ddp" in sys.argv:
    torch.distributed.init_process_group("gloo")
    trained = torch.nn.parallel.DistributedDataParallel(model)
if "compile" in sys.argv:
    trained = torch.compile(model, backend="aot_eager")
lines = []
optimizer = torch.optim.AdamW(model.parameters())
for inputs, labels in torch.utils.data.DataLoader(data, batch_size=2):
    loss = torch.nn.functional.cross_entropy(trained(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    lines.append(float(loss).hex())
weights = torch.cat([each.double().flatten() for each in model.state_dict().values()])
lines.append(f"{float(weights.sum()).hex()} {torch.get_rng_state().sum().item()}")
if os.environ.get("RANK", "0") == "0":
    print("\n".join(lines))
if "ddp" in sys.argv:
    torch.distributed.destroy_process_group()
