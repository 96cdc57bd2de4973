"""Sharded training, as in pytorch/examples' FSDP2."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(
    nn.Embedding(64, 64),
    *(nn.TransformerEncoderLayer(64, 4, 128, 0.0) for _ in range(2)),
    nn.Linear(64, 64),
)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for _ in range(30):
    given = torch.randint(0, 64, (16, 8))
    loss = nn.functional.cross_entropy(model(given).flatten(0, 1), given.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
dist.destroy_process_group()
