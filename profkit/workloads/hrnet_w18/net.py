"""HRNetW18 with an FCN head, for both frameworks: network, first weights and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.workloads.datasets.cityscapes import IGNORED
from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.network import Ops, Part, Tensor, make_part

STEM = 64
"""Channels of the stem."""

BOTTLENECKS = 4
"""Blocks of the first stage, which has one branch and exchanges nothing."""

CHANNELS = (18, 36, 72, 144)
"""Channels of the branches at 1/4, 1/8, 1/16 and 1/32 of the image's resolution."""

EXCHANGES = (1, 4, 3)
"""Number of exchanges in the stages of two, three and four branches."""

BLOCKS = 4
"""Residual blocks of each branch before an exchange."""

PUBLISHED_PARAMETERS = 9.7e6
"""The published count, which is Paddle's: it includes the running statistics of the norms."""

CLASSIFIER = "head.1.weight"
"""Name of the last convolution's weight."""


class Residual(Part):
    """A block whose input is added to its output."""

    def __init__(self, body: Any, shortcut: Any) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, features: Tensor) -> Tensor:
        return self.ops.relu(self.body(features) + self.shortcut(features))


class Exchange(Part):
    """Parallel branches of several resolutions, after which each adds up the output of all."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        ops = self.ops
        branches, paths = [], []
        for target, width in enumerate(channels):
            blocks = []
            for _ in range(BLOCKS):
                body = (conv_norm(ops, width, width), conv_norm(ops, width, width, relu=False))
                blocks.append(make_part(ops, Residual, ops.Sequential(*body), ops.Identity()))
            branches.append(ops.Sequential(*blocks))
            sources = range(len(channels))
            paths.append(ops.ModuleList([_path(ops, channels, one, target) for one in sources]))
        self.branches = ops.ModuleList(branches)
        self.paths = ops.ModuleList(paths)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        found = [branch(feature) for branch, feature in zip(self.branches, features, strict=True)]
        exchanged = []
        for paths, own in zip(self.paths, found, strict=True):
            parts = []
            for path, feature in zip(paths, found, strict=True):
                parts.append(stretch(self.ops, path(feature), own.shape[2:]))
            exchanged.append(self.ops.relu(sum(parts[1:], start=parts[0])))
        return exchanged


class Stage(Part):
    """Opens a branch at half the lowest resolution so far, then exchanges several times."""

    def __init__(self, before: Sequence[int], channels: Sequence[int], exchanges: int) -> None:
        super().__init__()
        ops = self.ops
        openings = []
        for place, width in enumerate(channels):
            if place >= len(before):
                openings.append(conv_norm(ops, before[-1], width, stride=2))
            elif before[place] == width:
                openings.append(ops.Identity())
            else:
                openings.append(conv_norm(ops, before[place], width))
        self.openings = ops.ModuleList(openings)
        repeated = [make_part(ops, Exchange, channels) for _ in range(exchanges)]
        self.exchanges = ops.Sequential(*repeated)

    def forward(self, features: list[Tensor]) -> Tensor:
        opened = []
        for place, opening in enumerate(self.openings):
            opened.append(opening(features[min(place, len(features) - 1)]))
        return self.exchanges(opened)


class HRNet(Part):
    """Scores of each class for each pixel."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        ops = self.ops
        stem = [conv_norm(ops, 3, STEM, stride=2), conv_norm(ops, STEM, STEM, stride=2)]
        stem.append(bottleneck(ops, STEM, STEM))
        stem += [bottleneck(ops, 4 * STEM, STEM) for _ in range(BOTTLENECKS - 1)]
        self.stem = ops.Sequential(*stem)
        stages = []
        before: tuple[int, ...] = (4 * STEM,)
        for count, exchanges in enumerate(EXCHANGES, start=2):
            stages.append(make_part(ops, Stage, before, CHANNELS[:count], exchanges))
            before = CHANNELS[:count]
        self.stages = ops.Sequential(*stages)
        joined = sum(CHANNELS)
        self.head = ops.Sequential(
            conv_norm(ops, joined, joined, 1, bias=True), ops.conv(joined, classes, 1, bias=True)
        )

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages([self.stem(images)])
        size = features[0].shape[2:]
        stretched = [stretch(self.ops, feature, size) for feature in features]
        scores = self.head(self.ops.concat(stretched, 1))
        return stretch(self.ops, scores, images.shape[2:])


class PixelLoss(Part):
    """The mean cross-entropy of the pixels that have a class."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.ops.masked_cross_entropy(self.ops.to_float(scores), labels, IGNORED)


def conv_norm(
    ops: Ops,
    inside: int,
    outside: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    relu: bool = True,
    bias: bool = False,
) -> Any:
    """Return a convolution with a batch norm and, by default, a ReLU."""
    layers = [ops.conv(inside, outside, kernel, stride, bias=bias), ops.Norm(outside)]
    if relu:
        layers.append(ops.Relu())
    return ops.Sequential(*layers)


def bottleneck(ops: Ops, inside: int, inner: int) -> Any:
    """Return a residual block that works on fewer channels than it returns."""
    body = ops.Sequential(
        conv_norm(ops, inside, inner, 1),
        conv_norm(ops, inner, inner),
        conv_norm(ops, inner, 4 * inner, 1, relu=False),
    )
    shortcut = ops.Identity()
    if inside != 4 * inner:
        shortcut = conv_norm(ops, inside, 4 * inner, 1, relu=False)
    return make_part(ops, Residual, body, shortcut)


def _path(ops: Ops, channels: Sequence[int], source: int, target: int) -> Any:
    """Lead from one resolution to another: down by strides, up by channels alone."""
    if source == target:
        return ops.Identity()
    if source > target:
        return conv_norm(ops, channels[source], channels[target], 1, relu=False)
    width = channels[source]
    layers = [conv_norm(ops, width, width, stride=2) for _ in range(target - source - 1)]
    return ops.Sequential(*layers, conv_norm(ops, width, channels[target], stride=2, relu=False))


def stretch(ops: Ops, features: Tensor, size: Sequence[int]) -> Tensor:
    """Scale features to a size, unless they have it."""
    if features.shape[2:] == size:
        return features
    return ops.resize(features, size)


def make_model(ops: Ops, classes: int, seed: int) -> Any:
    """Return the network with its first weights."""
    model = make_part(ops, HRNet, classes)
    ops.set_weights(model, lambda name, shape: first_weight(name, shape, seed))
    return model


def first_weight(name: str, shape: Sequence[int], seed: int) -> npt.NDArray[np.float32]:
    """Draw a weight; the last convolution starts small, as a classifier does."""
    if name == CLASSIFIER:
        return draw_weight(name, shape[:2], seed).reshape(shape)
    return draw_weight(name, shape, seed)


def loss_of(loss: Any, model: Any, batch: Any) -> Tensor:
    """Return what `loss`, a layer, makes of the model's scores."""
    images, labels = batch
    return loss(model(images), labels)


def predict(ops: Ops, model: Any, images: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return the class of each pixel of images of one size."""
    classes: npt.NDArray[np.int64] = ops.to_numpy(model(ops.to_tensor(images, model)).argmax(1))
    return classes
