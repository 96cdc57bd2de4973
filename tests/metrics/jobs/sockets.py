"""A small training loop that counts the sockets and threads of its own process at the end."""

from __future__ import annotations

import os
import threading
import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(120, 8), torch.randn(120, 1))
for inputs, targets in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    ((model(inputs) - targets) ** 2).mean().backward()
    optimizer.step()
deadline = time.monotonic() + 60
while time.monotonic() < deadline and any("opener" in each.name for each in threading.enumerate()):
    time.sleep(0.01)  # it starts the collectors, however few steps the job has
opened = [os.readlink(f"/proc/self/fd/{number}") for number in range(3, 64)
          if os.path.islink(f"/proc/self/fd/{number}")]  # fmt: skip
print("sockets", sum(place.startswith("socket:") for place in opened))
print("threads", sorted(thread.name for thread in threading.enumerate()))
print("environment", sorted(name for name in os.environ if "EXPORT" in name or "LOG_TO" in name))
