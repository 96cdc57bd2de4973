"""A loop without a loader and without an optimizer's class; it prints each loss to the bit."""

from __future__ import annotations

import sys

import torch

STEPS = 12


torch.manual_seed(0)
width = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Linear(width, 1))
inputs, targets = torch.randn(STEPS, 4, 8), torch.randn(STEPS, 4, 1)
for step in range(STEPS):
    model.zero_grad()
    loss = ((model(inputs[step]) - targets[step]) ** 2).mean()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.01)
    print("loss", loss.item().hex())
