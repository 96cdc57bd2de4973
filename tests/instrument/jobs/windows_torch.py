"""A job of 14 steps on the CPU; with an argument, it uses torch's profiler in the window."""

from __future__ import annotations

import sys

import torch

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(28, 3, 16, 16), torch.zeros(28, dtype=torch.long))
own = None
for number, (inputs, labels) in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    if number == 5 and len(sys.argv) > 1:
        own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        own.start()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    if number == 9 and own is not None:
        own.stop()
        print(len(own.key_averages()) > 0)
