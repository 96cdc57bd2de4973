"""A job whose forward takes longer from a step on; it prints its first losses.

It ends some steps after profkit has asked for a capture, however busy the machine is.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

MOST_STEPS, AT, MORE_STEPS = 1_500, 110, 60
ASKED = Path(os.environ.get("PROFKIT_RUN", "")) / ".captures"
USUAL_S, MORE_S = 0.012, 0.012


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(USUAL_S)
        if self.step >= AT:
            self.slower()
        found: torch.Tensor = self.layer(x)
        return found

    def slower(self) -> None:
        time.sleep(MORE_S)  # slower


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
last = MOST_STEPS
while net.step < last:
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    if net.step < AT:
        print(loss.item())
    net.step += 1
    if last == MOST_STEPS and net.step > AT and ASKED.exists():
        last = net.step + MORE_STEPS
