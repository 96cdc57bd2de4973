"""DeepSpeed's cifar example: `deepspeed.initialize`, the engine's own backward and step."""

import deepspeed
import generated
import torch
from torch import nn
from torch.utils.data import TensorDataset


def main():
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    images, labels = map(torch.from_numpy, generated.classes(320, (3, 16, 16)))
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 49, 10)
    )
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    engine, _, loader, _ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        training_data=TensorDataset(images, labels),
        config=config,
    )
    for _ in range(2):
        for inputs, targets in loader:
            outputs = engine(inputs.to(torch.bfloat16))
            loss = nn.functional.cross_entropy(outputs.float(), targets)
            engine.backward(loss)
            engine.step()
    print(loss.item())


if __name__ == "__main__":
    main()
