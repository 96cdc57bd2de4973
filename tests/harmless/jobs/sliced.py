"""More steps than the window of an experiment: two workers, and the digest of all losses."""

from __future__ import annotations

import hashlib

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 560, 4


def train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    count = STEPS * BATCH
    data = TensorDataset(torch.randn(count, 8), torch.randint(0, 4, (count,)))
    losses = []
    for inputs, labels in DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("digest", hashlib.sha256(repr(losses).encode()).hexdigest(), flush=True)


if __name__ == "__main__":
    train()
