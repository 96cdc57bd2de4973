"""Processes that train one shared model side by side, and are no ranks of a group."""

from __future__ import annotations

import torch

PROCESSES, BATCH, STEPS = 2, 8, 24


def train(model: torch.nn.Module) -> None:
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.randn(BATCH * STEPS, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (inputs,) in torch.utils.data.DataLoader(data, batch_size=BATCH):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    shared = torch.nn.Linear(4, 1)
    shared.share_memory()
    started = [
        torch.multiprocessing.Process(target=train, args=(shared,)) for _ in range(PROCESSES)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
