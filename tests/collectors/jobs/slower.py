"""A job whose forward takes longer from a step on; it prints its losses."""

import time

import torch
from torch import nn

STEPS, AT = 260, 110
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
for step in range(STEPS):
    net.step = step
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(float(loss))
