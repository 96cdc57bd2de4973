"""ResNet50 v1.5 in PyTorch: torchvision's, which has the stride in the 3x3 convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torchvision

from profkit.workloads.training.inference import torch_predictor as predictor

__all__ = ["loss_of", "make_model", "make_optimizer", "predictor"]


def make_model(classes: int) -> torch.nn.Module:
    model: torch.nn.Module = torchvision.models.resnet50(
        weights=None, num_classes=classes, zero_init_residual=True
    )
    return model


def make_optimizer(model: torch.nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(),
        lr=config["lr"],
        momentum=config["momentum"],
        weight_decay=config["weight_decay"],
    )


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
