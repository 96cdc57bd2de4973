"""TSM on a ResNet50, in PyTorch: torchvision's model with a temporal shift before the first convolution of each residual branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.inference import torch_predictor

SHIFTED = 8
"""One in so many channels is shifted forwards in time, and as many backwards."""

ZERO_AT_FIRST = "bn3.weight"
"""Each residual block begins as the identity, without which a ResNet50 learns little from a small set."""

predictor = torch_predictor


class Shifted(nn.Module):
    """A layer that sees an eighth of its channels a segment late and an eighth a segment early."""

    def __init__(self, layer: nn.Module, segments: int) -> None:
        super().__init__()
        self.layer = layer
        self.segments = segments

    def forward(self, frames: Tensor) -> Tensor:
        shifted: Tensor = self.layer(temporal_shift(frames, self.segments))
        return shifted


def temporal_shift(frames: Tensor, segments: int) -> Tensor:
    """As `paddle.nn.functional.temporal_shift` with a ratio of 1/8; zeros come in at the ends of a clip."""
    clips = frames.unflatten(0, (-1, segments))
    fold = frames.shape[1] // SHIFTED
    late = functional.pad(clips[:, :-1, :fold], (0, 0, 0, 0, 0, 0, 1, 0))
    early = functional.pad(clips[:, 1:, fold : 2 * fold], (0, 0, 0, 0, 0, 0, 0, 1))
    return torch.cat([late, early, clips[:, :, 2 * fold :]], dim=2).flatten(0, 1)


class TSM(nn.Module):
    """Logits of a clip's class: the mean over its segments."""

    def __init__(self, classes: int, segments: int) -> None:
        super().__init__()
        net = torchvision.models.resnet50(weights=None)
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in stage:
                block.conv1 = Shifted(block.conv1, segments)
        net.fc = nn.Sequential(nn.Dropout(0.5), nn.Linear(2048, classes))
        self.net = net
        self.segments = segments

    def forward(self, clips: Tensor) -> Tensor:
        of_segments: Tensor = self.net(clips.flatten(0, 1)).unflatten(0, (-1, self.segments))
        return of_segments.mean(dim=1)


def make_model(classes: int, segments: int, seed: int) -> nn.Module:
    model = TSM(classes, segments)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(
                torch.from_numpy(draw_weight(name, weight.shape, seed, zero=ZERO_AT_FIRST))
            )
    return model


def make_optimizer(model: nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(),
        lr=config["lr"],
        momentum=config["momentum"],
        weight_decay=config["weight_decay"],
    )


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    clips, labels = batch
    return functional.cross_entropy(model(clips).float(), labels)
