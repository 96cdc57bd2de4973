"""The loop of pytorch/examples' regression: one linear layer, updated by hand."""

from itertools import count

import torch
import torch.nn.functional as F

DEGREE = 4
torch.manual_seed(0)
weight, bias = torch.randn(DEGREE, 1) * 5, torch.randn(1) * 5


def get_batch(size=32):
    x = torch.randn(size).unsqueeze(1)
    x = torch.cat([x**power for power in range(1, DEGREE + 1)], 1)
    return x, x.mm(weight) + bias.item()


fc = torch.nn.Linear(DEGREE, 1)
for number in count(1):
    x, y = get_batch()
    fc.zero_grad()
    output = F.smooth_l1_loss(fc(x), y)
    loss = output.item()
    output.backward()
    for parameter in fc.parameters():
        parameter.data.add_(-0.1 * parameter.grad)
    if loss < 1e-3 or number == 200:
        break
print(number, loss)
