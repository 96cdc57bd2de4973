"""Ray Train's own linear example on two workers, seeded so that two runs are comparable."""

import ray
import torch
from ray.train import ScalingConfig
from ray.train.examples.pytorch import torch_linear_example as example
from ray.train.torch import TorchTrainer


def train_seeded(config):
    torch.manual_seed(0)
    return example.train_func(config)


if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        train_seeded,
        train_loop_config={"lr": 1e-2, "hidden_size": 1, "batch_size": 4, "epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
    )
    print("metrics", repr(sorted((trainer.fit().metrics or {}).items())))
