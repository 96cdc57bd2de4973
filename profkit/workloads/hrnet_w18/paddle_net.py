"""HRNetW18 with an FCN head, in Paddle. `_hrnet_torch.py` is the same line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional

from profkit.workloads.datasets.cityscapes import IGNORED
from profkit.workloads.hrnet_w18.shape import (
    BLOCKS,
    BOTTLENECKS,
    CHANNELS,
    MODULES,
    STEM,
    first_weight,
)


def conv_norm(
    inside: int,
    outside: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    relu: bool = True,
    bias: bool = False,
) -> nn.Sequential:
    layers: list[nn.Layer] = [
        nn.Conv2D(inside, outside, kernel, stride, kernel // 2, bias_attr=None if bias else False),
        nn.BatchNorm2D(outside),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if relu else nn.Sequential(*layers)


def stretch(features: paddle.Tensor, size: Sequence[int]) -> paddle.Tensor:
    if features.shape[2:] == size:
        return features
    return functional.interpolate(features, size=size, mode="bilinear", align_corners=False)


class Residual(nn.Layer):
    """A block of which the input is added to the output."""

    def __init__(self, body: nn.Layer, shortcut: nn.Layer) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, features: paddle.Tensor) -> paddle.Tensor:
        return functional.relu(self.body(features) + self.shortcut(features))


def basic_block(channels: int) -> Residual:
    return Residual(
        nn.Sequential(conv_norm(channels, channels), conv_norm(channels, channels, relu=False)),
        nn.Identity(),
    )


def bottleneck(inside: int, inner: int) -> Residual:
    body = nn.Sequential(
        conv_norm(inside, inner, 1),
        conv_norm(inner, inner),
        conv_norm(inner, 4 * inner, 1, relu=False),
    )
    return Residual(
        body, nn.Identity() if inside == 4 * inner else conv_norm(inside, 4 * inner, 1, relu=False)
    )


class Exchange(nn.Layer):
    """Branches of several resolutions work side by side; then each adds up what all of them found."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.branches = nn.LayerList(
            nn.Sequential(*(basic_block(width) for _ in range(BLOCKS))) for width in channels
        )
        places = range(len(channels))
        self.paths = nn.LayerList(
            nn.LayerList(_path(channels, source, target) for source in places) for target in places
        )

    def forward(self, features: list[paddle.Tensor]) -> list[paddle.Tensor]:
        found = [branch(feature) for branch, feature in zip(self.branches, features, strict=True)]
        return [
            self._add_up(paths, found, feature.shape[2:])
            for paths, feature in zip(self.paths, found, strict=True)
        ]

    def _add_up(self, paths: Any, found: list[paddle.Tensor], size: Sequence[int]) -> paddle.Tensor:
        first, *others = [
            stretch(path(feature), size) for path, feature in zip(paths, found, strict=True)
        ]
        return functional.relu(sum(others, start=first))


def _path(channels: Sequence[int], source: int, target: int) -> nn.Layer:
    """From one resolution to another: down by strided convolutions, up by one that `stretch` follows."""
    if source == target:
        return nn.Identity()
    if source > target:
        return conv_norm(channels[source], channels[target], 1, relu=False)
    steps = [
        conv_norm(channels[source], channels[source], stride=2) for _ in range(target - source - 1)
    ]
    return nn.Sequential(
        *steps, conv_norm(channels[source], channels[target], stride=2, relu=False)
    )


class Stage(nn.Layer):
    """Opens one more branch, at half the lowest resolution so far, and exchanges several times."""

    def __init__(self, before: Sequence[int], channels: Sequence[int], modules: int) -> None:
        super().__init__()
        self.openings = nn.LayerList(
            _opening(before, width, place) for place, width in enumerate(channels)
        )
        self.exchanges = nn.Sequential(*(Exchange(channels) for _ in range(modules)))

    def forward(self, features: list[paddle.Tensor]) -> list[paddle.Tensor]:
        opened = [
            opening(features[min(place, len(features) - 1)])
            for place, opening in enumerate(self.openings)
        ]
        exchanged: list[paddle.Tensor] = self.exchanges(opened)
        return exchanged


def _opening(before: Sequence[int], width: int, place: int) -> nn.Layer:
    if place >= len(before):
        return conv_norm(before[-1], width, stride=2)
    return nn.Identity() if before[place] == width else conv_norm(before[place], width)


class HRNet(nn.Layer):
    """Scores of each class for each pixel."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        wide = [
            bottleneck(STEM if number == 0 else 4 * STEM, STEM) for number in range(BOTTLENECKS)
        ]
        self.stem = nn.Sequential(
            conv_norm(3, STEM, stride=2), conv_norm(STEM, STEM, stride=2), *wide
        )
        befores = ((4 * STEM,), CHANNELS[:2], CHANNELS[:3])
        self.stages = nn.Sequential(
            *(
                Stage(before, CHANNELS[:count], MODULES[count - 2])
                for count, before in enumerate(befores, start=2)
            )
        )
        joined = sum(CHANNELS)
        self.head = nn.Sequential(
            conv_norm(joined, joined, 1, bias=True), nn.Conv2D(joined, classes, 1)
        )

    def forward(self, images: paddle.Tensor) -> paddle.Tensor:
        features = self.stages([self.stem(images)])
        joined = paddle.concat(
            [stretch(feature, features[0].shape[2:]) for feature in features], axis=1
        )
        return stretch(self.head(joined), images.shape[2:])


def make_model(classes: int, seed: int) -> HRNet:
    model = HRNet(classes)
    for name, parameter in model.named_parameters():
        if not parameter.stop_gradient:  # a norm's running statistics are parameters in Paddle
            parameter.set_value(first_weight(name, parameter.shape, seed))
    return model


def make_optimizer(model: nn.Layer, config: Mapping[str, Any]) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.Momentum(
        config["lr"],
        config["momentum"],
        parameters=model.parameters(),
        weight_decay=config["weight_decay"],
    )


def loss_of(model: nn.Layer, batch: Any) -> paddle.Tensor:
    """Cross-entropy, the mean over pixels that have a class; nothing, not NaN, where none has."""
    images, labels = batch
    scores = model(images).astype("float32")
    total = functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum", axis=1)
    mean: paddle.Tensor = total / (labels != IGNORED).sum().clip(min=1).astype("float32")
    return mean


def predict(model: nn.Layer, image: Any) -> Any:
    """The class of each pixel of one image."""
    return model(paddle.to_tensor(image[None]))[0].argmax(0).numpy()
