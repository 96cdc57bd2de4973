"""An ordinary DDP script for torchrun, with gloo and gradient accumulation."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--late-ms", type=float, default=0.0)
    parser.add_argument("--bucket-mb", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    middle = torch.nn.Linear(256, 256)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), middle, torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    if args.late_ms and dist.get_rank() == 1:
        middle.weight.register_hook(lambda gradient: time.sleep(args.late_ms / 1e3))
    parallel = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    losses = []
    for number, (inputs, labels) in enumerate(loader):
        last = (number + 1) % args.accumulate == 0
        with contextlib.nullcontext() if last else parallel.no_sync():
            loss = (
                torch.nn.functional.cross_entropy(parallel(inputs.to("cpu")), labels)
                / args.accumulate
            )
            loss.backward()
        losses.append(loss.item())
        if last:
            optimizer.step()
            optimizer.zero_grad()
        if number + 1 == args.steps * args.accumulate:
            break
    # In one piece, because two ranks write here.
    sys.stdout.write(f"rank {dist.get_rank()} losses {losses!r}\n")
    sys.stdout.flush()
    # torch aborts if the interpreter ends while gloo's threads still release the last bucket. That
    # happens in one run of four without this pause.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
