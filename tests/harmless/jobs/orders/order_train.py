"""An ordinary script: thirty steps of a linear layer, and the digest of its weights."""

from __future__ import annotations

import hashlib
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS = 30
BATCH = 8


def train(pause_s: float = 0.02) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    count = STEPS * BATCH
    data = TensorDataset(torch.randn(count, 8), torch.randint(0, 4, (count,)))
    for inputs, labels in DataLoader(data, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        time.sleep(pause_s)
    weights = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
    print("digest", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    train()
