"""A loop over a stream of `datasets` behind torch's loader, two workers."""

import generated
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
images, labels = generated.classes(256, (64,))
rows = Dataset.from_dict({"x": list(images), "y": labels}).to_iterable_dataset(num_shards=4)
loader = DataLoader(rows.with_format("torch"), batch_size=8, num_workers=2)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    for batch in loader:
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
