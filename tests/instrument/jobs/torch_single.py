"""An ordinary script of one process: loader workers, evaluation, a scheduler."""

from __future__ import annotations

import argparse
import os
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--end", default="return")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    )
    model(torch.zeros(2, 3, 16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8)
    data = TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=args.workers)
    done = 0
    while done < args.steps:
        for batch in loader:
            images, labels = (part.to("cpu") for part in batch)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            print("loss", repr(loss.item()), flush=True)
            done += 1
            if done == args.steps:
                break
        model.eval()
        with torch.no_grad():
            print(
                "evaluation",
                repr(
                    sum(model(images).sum().item() for images, _ in DataLoader(data, batch_size=32))
                ),
                flush=True,
            )
        model.train()
    if args.end == "raise":
        raise RuntimeError("the job's own error")
    if args.end == "_exit":
        os._exit(7)
    if args.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
