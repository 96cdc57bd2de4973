"""Mask R-CNN R50-FPN in PyTorch: torchvision's model, for images that are scaled already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

from profkit.workloads.mask_rcnn.data import Scaling


def make_model(categories: int, scaling: Scaling, rois: int) -> torch.nn.Module:
    """Return the published model with random weights.

    torchvision gives such a model batch norm that learns, and trains all layers of the backbone.
    As in the published pipeline the workers scale images; the model only normalises and pads them.
    """
    model: torch.nn.Module = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=categories + 1,
        min_size=scaling.short,
        max_size=scaling.long,
        box_batch_size_per_image=rois,
        _skip_resize=True,
    )
    return model


def make_optimizer(model: torch.nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Return SGD with biases at twice the rate and without decay, as published."""
    weights: dict[str, Any] = {"params": [], "weight_decay": config["weight_decay"]}
    biases: dict[str, Any] = {"params": [], "lr": 2 * config["lr"], "weight_decay": 0.0}
    for name, parameter in model.named_parameters():
        group = biases if name.endswith("bias") else weights
        group["params"].append(parameter)
    return torch.optim.SGD([weights, biases], lr=config["lr"], momentum=config["momentum"])


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the sum of the five losses: two of proposals, and those of class, box, mask."""
    images, targets = batch
    losses = model(images, targets)
    return torch.stack(list(losses.values())).sum()


def predict(model: torch.nn.Module, image: Any) -> dict[str, Any]:
    """Return the `boxes`, `labels`, `scores` and soft `masks` found in an image."""
    device = next(model.parameters()).device
    (found,) = model([torch.from_numpy(image).to(device)])
    arrays = {name: tensor.float().cpu().numpy() for name, tensor in found.items()}
    return {**arrays, "masks": arrays["masks"][:, 0]}
