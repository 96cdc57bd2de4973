"""TSM on a ResNet50, in Paddle: its own model and its own temporal shift, with the names of parts that PyTorch's version has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.inference import paddle_predictor

SHIFTED = 8
"""One in so many channels is shifted forwards in time, and as many backwards."""

ZERO_AT_FIRST = "bn3.weight"
"""Each residual block begins as the identity, without which a ResNet50 learns little from a small set."""

predictor = paddle_predictor


class Shifted(nn.Layer):
    """A layer that sees an eighth of its channels a segment late and an eighth a segment early."""

    def __init__(self, layer: nn.Layer, segments: int) -> None:
        super().__init__()
        self.layer = layer
        self.segments = segments

    def forward(self, frames: Tensor) -> Tensor:
        shifted: Tensor = self.layer(functional.temporal_shift(frames, self.segments, 1 / SHIFTED))
        return shifted


class TSM(nn.Layer):
    """Logits of a clip's class: the mean over its segments."""

    def __init__(self, classes: int, segments: int) -> None:
        super().__init__()
        net: Any = paddle.vision.models.resnet50()
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in stage:
                block.conv1 = Shifted(block.conv1, segments)
        net.fc = nn.Sequential(nn.Dropout(0.5), nn.Linear(2048, classes))
        self.net = net
        self.segments = segments

    def forward(self, clips: Tensor) -> Tensor:
        scores: Tensor = self.net(clips.flatten(0, 1))
        return scores.reshape([-1, self.segments, scores.shape[-1]]).mean(axis=1)


def make_model(classes: int, segments: int, seed: int) -> nn.Layer:
    model = TSM(classes, segments)
    for name, weight in model.named_parameters():
        if weight.trainable:  # Paddle counts a norm's statistics among them
            weight.set_value(_draw(name, weight.shape, seed))
    return model


def _draw(name: str, shape: Sequence[int], seed: int) -> npt.NDArray[np.float32]:
    """Matrices are (in, out) here."""
    return (
        draw_weight(name, shape[::-1], seed).T
        if len(shape) == 2
        else draw_weight(name, shape, seed, zero=ZERO_AT_FIRST)
    )


def make_optimizer(model: nn.Layer, config: Mapping[str, Any]) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.Momentum(
        config["lr"],
        config["momentum"],
        parameters=model.parameters(),
        weight_decay=config["weight_decay"],
    )


def loss_of(model: nn.Layer, batch: Sequence[Tensor]) -> Tensor:
    clips, labels = batch
    return functional.cross_entropy(model(clips).astype("float32"), labels)
