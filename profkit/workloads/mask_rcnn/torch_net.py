"""Mask R-CNN R50-FPN in PyTorch: torchvision's model, for images that are scaled already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

from profkit.workloads.mask_rcnn.data import Scaling


def make_model(categories: int, scaling: Scaling, rois: int) -> torch.nn.Module:
    """Return the published model with random weights.

    As in the published pipeline the workers scale images; the model only normalises and pads them.
    """
    model: Any = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=categories + 1,
        min_size=scaling.short,
        max_size=scaling.long,
        box_batch_size_per_image=rois,
        _skip_resize=True,
    )
    body = model.backbone.body
    for stage in (body.layer2, body.layer3, body.layer4):
        # The published network halves the resolution in the first convolution of a stage,
        # torchvision's in the second. That makes the first one four times as costly.
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for frozen in (body.conv1, body.bn1, body.layer1):
        frozen.requires_grad_(requires_grad=False)
    return model  # type: ignore[no-any-return]  # as torchvision's annotations see it


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the sum of the five losses: two of proposals, and those of class, box, mask."""
    images, targets = batch
    losses = model(images, targets)
    return torch.stack(list(losses.values())).sum()


def predict(model: torch.nn.Module, images: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the `boxes`, `labels`, `scores` and soft `masks` found in each image."""
    device = next(model.parameters()).device
    answers = []
    for found in model([torch.from_numpy(image).to(device) for image in images]):
        arrays = {}
        for name, tensor in found.items():
            arrays[name] = tensor.float().cpu().numpy()
        answers.append({**arrays, "masks": arrays["masks"][:, 0]})
    return answers
