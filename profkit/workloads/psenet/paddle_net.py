"""PSENet with a ResNet50 and a feature pyramid, in Paddle: the same architecture, loss and names of parts as in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.inference import paddle_predictor

KERNELS = 7
NEGATIVES_PER_POSITIVE = 3
TEXT_WEIGHT, KERNEL_WEIGHT = 0.7, 0.3

predictor = paddle_predictor


class ConvNormRelu(nn.Sequential):
    """The unit that everything but ResNet's blocks is made of."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        conv = nn.Conv2D(channels, out, kernel, stride, padding=kernel // 2, bias_attr=False)
        super().__init__(conv, nn.BatchNorm2D(out), nn.ReLU())


class Backbone(nn.Layer):
    """Paddle's ResNet50 with a stem of three 3x3 convolutions and 128 channels; gives the features of its four stages."""

    def __init__(self) -> None:
        super().__init__()
        net: Any = paddle.vision.models.resnet50(num_classes=0, with_pool=False)
        net.layer1[0].conv1 = nn.Conv2D(128, 64, 1, bias_attr=False)
        net.layer1[0].downsample[0] = nn.Conv2D(128, 256, 1, bias_attr=False)
        self.stem = nn.Sequential(
            ConvNormRelu(3, 64, 3, stride=2),
            ConvNormRelu(64, 64, 3),
            ConvNormRelu(64, 128, 3),
            nn.MaxPool2D(3, 2, padding=1),
        )
        self.stages = nn.LayerList([net.layer1, net.layer2, net.layer3, net.layer4])

    def forward(self, images: Tensor) -> list[Tensor]:
        features = [self.stem(images)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features[1:]


class Pyramid(nn.Layer):
    """Merges the stages from the top down and joins all levels at the resolution of the lowest: 1024 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.LayerList(
            [ConvNormRelu(channels, 256, 1) for channels in (256, 512, 1024, 2048)]
        )
        self.smooth = nn.LayerList([ConvNormRelu(256, 256, 3) for _ in range(3)])

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        sides = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        levels = [sides.pop()]
        for smooth in self.smooth:
            side = sides.pop()
            levels.append(smooth(enlarge(levels[-1], side) + side))
        lowest = levels.pop()
        return paddle.concat(
            [lowest, *(enlarge(level, lowest) for level in reversed(levels))], axis=1
        )


class PSENet(nn.Layer):
    """Logits of the text and of its six ever smaller kernels, at a quarter of the images' resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.pyramid = Pyramid()
        self.head = nn.Sequential(
            nn.Conv2D(1024, 256, 3, padding=1),
            nn.BatchNorm2D(256),
            nn.ReLU(),
            nn.Conv2D(256, KERNELS, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pyramid(self.backbone(images)))
        return logits


def enlarge(features: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(
        features, size=like.shape[-2:], mode="bilinear", align_corners=False
    )


def make_model(seed: int) -> nn.Layer:
    model = PSENet()
    for name, weight in model.named_parameters():
        if weight.trainable:  # Paddle counts a norm's statistics among them
            weight.set_value(draw_weight(name, weight.shape, seed))
    return model


def make_optimizer(model: nn.Layer, config: Mapping[str, Any]) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.Momentum(
        config["lr"],
        config["momentum"],
        parameters=model.parameters(),
        weight_decay=config["weight_decay"],
    )


def loss_of(model: nn.Layer, batch: Sequence[Tensor]) -> Tensor:
    """The published loss of images, text, kernels and what is to be cared for; in fp32, since sums over an image overflow fp16."""
    images, text, kernels, care = batch
    logits = enlarge(model(images), images).astype("float32")
    return text_loss(
        logits, text.astype("float32"), kernels.astype("float32"), care.astype("float32")
    )


def text_loss(logits: Tensor, text: Tensor, kernels: Tensor, care: Tensor) -> Tensor:
    """Dice of the text where it is hard, and of the kernels inside the text."""
    hard = hard_pixels(logits[:, 0].detach(), text, care)
    inside = text * care
    of_kernels = [
        dice(logits[:, number + 1], kernels[:, number], inside)
        for number in range(kernels.shape[1])
    ]
    return (
        TEXT_WEIGHT * dice(logits[:, 0], text, hard).mean()
        + KERNEL_WEIGHT * paddle.stack(of_kernels).mean()
    )


def dice(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """One less Dice's coefficient, for each image of a batch."""
    found = (functional.sigmoid(logits) * mask).flatten(1)
    wanted = (target * mask).flatten(1)
    both = (found * wanted).sum(1)
    return 1 - 2 * both / ((found * found).sum(1) + 0.001 + (wanted * wanted).sum(1) + 0.001)


def hard_pixels(scores: Tensor, text: Tensor, care: Tensor) -> Tensor:
    """All text, and three times as many of the other pixels, those that look most like text; image by image, as published."""
    return paddle.stack(
        [
            _hard_pixels_of_one(scores[number], text[number], care[number])
            for number in range(len(scores))
        ]
    )


def _hard_pixels_of_one(scores: Tensor, text: Tensor, care: Tensor) -> Tensor:
    others = scores[text <= 0.5]
    positives = int(((text > 0.5) & (care > 0.5)).astype("int64").sum())
    kept = min(NEGATIVES_PER_POSITIVE * positives, len(others))
    if kept == 0:
        return care
    threshold = others.sort(descending=True)[kept - 1]
    return (((scores >= threshold) | (text > 0.5)) & (care > 0.5)).astype("float32")
