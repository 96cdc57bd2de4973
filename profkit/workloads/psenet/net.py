"""PSENet with a ResNet50 and a feature pyramid, for both frameworks: network and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.network import Ops, Part, Tensor, make_part

KERNELS = 7
"""Maps that the network returns: the text, and six kernels of it."""

NEGATIVES_PER_POSITIVE = 3
TEXT_WEIGHT, KERNEL_WEIGHT = 0.7, 0.3


class Backbone(Part):
    """A ResNet50 with a stem of three 3x3 convolutions; returns the features of its stages."""

    def __init__(self) -> None:
        super().__init__()
        ops = self.ops
        net = ops.resnet50()
        net.layer1[0].conv1 = ops.conv(128, 64, 1)
        net.layer1[0].downsample[0] = ops.conv(128, 256, 1)
        self.stem = ops.Sequential(
            conv_norm_relu(ops, 3, 64, 3, stride=2),
            conv_norm_relu(ops, 64, 64, 3),
            conv_norm_relu(ops, 64, 128, 3),
            ops.MaxPool(3, 2, padding=1),
        )
        self.stages = ops.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])

    def forward(self, images: Tensor) -> list[Tensor]:
        features = [self.stem(images)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features[1:]


class Pyramid(Part):
    """Merges the stages from the top down, and joins them at the lowest one's resolution."""

    def __init__(self) -> None:
        super().__init__()
        ops, widths = self.ops, (256, 512, 1024, 2048)
        self.lateral = ops.ModuleList([conv_norm_relu(ops, width, 256, 1) for width in widths])
        self.smooth = ops.ModuleList([conv_norm_relu(ops, 256, 256, 3) for _ in range(3)])

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        sides = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        levels = [sides.pop()]
        for smooth in self.smooth:
            side = sides.pop()
            levels.append(smooth(self.ops.resize(levels[-1], side.shape[-2:]) + side))
        lowest = levels.pop()
        size = lowest.shape[-2:]
        enlarged = [self.ops.resize(level, size) for level in reversed(levels)]
        return self.ops.concat([lowest, *enlarged], 1)


class PSENet(Part):
    """Logits of the text and of its six kernels, at a quarter of the images' resolution."""

    def __init__(self) -> None:
        super().__init__()
        ops = self.ops
        self.backbone = make_part(ops, Backbone)
        self.pyramid = make_part(ops, Pyramid)
        self.head = ops.Sequential(
            ops.conv(1024, 256, 3, bias=True),
            ops.Norm(256),
            ops.InPlaceRelu(),
            ops.conv(256, KERNELS, 1, bias=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pyramid(self.backbone(images)))


def conv_norm_relu(ops: Ops, inside: int, outside: int, kernel: int, stride: int = 1) -> Any:
    """Return the unit that everything but ResNet's own blocks is made of."""
    layers = (ops.conv(inside, outside, kernel, stride), ops.Norm(outside), ops.InPlaceRelu())
    return ops.Sequential(*layers)


def make_model(ops: Ops, seed: int) -> Any:
    """Return the network with its first weights."""
    model = make_part(ops, PSENet)
    ops.set_weights(model, lambda name, shape: draw_weight(name, shape, seed))
    return model


def loss_of(ops: Ops, model: Any, batch: Sequence[Tensor]) -> Tensor:
    """Return the published loss in fp32: sums over an image overflow fp16."""
    images, *masks = batch
    logits = ops.to_float(ops.resize(model(images), images.shape[-2:]))
    text, kernels, care = map(ops.to_float, masks)
    return text_loss(ops, logits, text, kernels, care)


def text_loss(ops: Ops, logits: Tensor, text: Tensor, kernels: Tensor, care: Tensor) -> Tensor:
    """Return the dice loss of the hard pixels' text and of the kernels inside the text."""
    hard = hard_pixels(ops, logits[:, 0].detach(), text, care)
    inside = text * care
    of_kernels = []
    for number in range(kernels.shape[1]):
        of_kernels.append(dice(logits[:, number + 1], kernels[:, number], inside))
    of_text = dice(logits[:, 0], text, hard)
    return TEXT_WEIGHT * of_text.mean() + KERNEL_WEIGHT * ops.stack(of_kernels).mean()


def dice(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return one minus Dice's coefficient for each image of a batch."""
    found = (logits.sigmoid() * mask).flatten(1)
    wanted = (target * mask).flatten(1)
    both = (found * wanted).sum(1)
    return 1 - 2 * both / ((found * found).sum(1) + 0.001 + (wanted * wanted).sum(1) + 0.001)


def hard_pixels(ops: Ops, scores: Tensor, text: Tensor, care: Tensor) -> Tensor:
    """Select all text, and three times as many of the pixels that look most like text.

    The selection is made image by image, as published.
    """
    masks = []
    for number in range(len(scores)):
        logits, is_text, counts = scores[number], text[number] > 0.5, care[number] > 0.5
        others = logits[text[number] <= 0.5]
        kept = min(NEGATIVES_PER_POSITIVE * int((is_text & counts).sum()), len(others))
        if kept == 0:
            masks.append(care[number])
            continue
        threshold = ops.sort_descending(others)[kept - 1]
        masks.append(ops.to_float(((logits >= threshold) | is_text) & counts))
    return ops.stack(masks)
