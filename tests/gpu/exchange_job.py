"""Train DDP on two ranks that share one device: gloo over CUDA tensors."""

import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(0)
torch.distributed.init_process_group("gloo")
late = float(os.environ.get("LATE_MS", "0")) / 1e3 * int(os.environ["RANK"])
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
model = DistributedDataParallel(net, bucket_cap_mb=4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.utils.data.TensorDataset(torch.randn(2560, 1024))
for (inputs,) in torch.utils.data.DataLoader(data, batch_size=64):
    outputs = model(inputs.cuda(non_blocking=True))
    time.sleep(late)
    outputs.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
time.sleep(0.3)
torch.distributed.destroy_process_group()
