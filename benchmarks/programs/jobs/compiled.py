"""A compiled model in a hand-written loop, with a compiled function beside it."""

import generated
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images, labels = map(torch.from_numpy, generated.classes(320, (3, 16, 16)))
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 144, 10),
)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    for image, target in loader:
        loss = nn.functional.cross_entropy(compiled(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
