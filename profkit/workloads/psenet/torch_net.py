"""PSENet with a ResNet50 and a feature pyramid, in PyTorch: the model of the published benchmark, its loss and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.inference import torch_predictor

KERNELS = 7
NEGATIVES_PER_POSITIVE = 3
TEXT_WEIGHT, KERNEL_WEIGHT = 0.7, 0.3

predictor = torch_predictor


class ConvNormRelu(nn.Sequential):
    """The unit that everything but ResNet's blocks is made of."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class Backbone(nn.Module):
    """torchvision's ResNet50 with a stem of three 3x3 convolutions and 128 channels; gives the features of its four stages."""

    def __init__(self) -> None:
        super().__init__()
        net = torchvision.models.resnet50(weights=None)
        net.layer1[0].conv1 = nn.Conv2d(128, 64, 1, bias=False)
        net.layer1[0].downsample[0] = nn.Conv2d(128, 256, 1, bias=False)
        self.stem = nn.Sequential(
            ConvNormRelu(3, 64, 3, stride=2),
            ConvNormRelu(64, 64, 3),
            ConvNormRelu(64, 128, 3),
            nn.MaxPool2d(3, 2, padding=1),
        )
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])

    def forward(self, images: Tensor) -> list[Tensor]:
        features = [self.stem(images)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features[1:]


class Pyramid(nn.Module):
    """Merges the stages from the top down and joins all levels at the resolution of the lowest: 1024 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(
            [ConvNormRelu(channels, 256, 1) for channels in (256, 512, 1024, 2048)]
        )
        self.smooth = nn.ModuleList([ConvNormRelu(256, 256, 3) for _ in range(3)])

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        sides = [lateral(feature) for lateral, feature in zip(self.lateral, features, strict=True)]
        levels = [sides.pop()]
        for smooth in self.smooth:
            side = sides.pop()
            levels.append(smooth(enlarge(levels[-1], side) + side))
        lowest = levels.pop()
        return torch.cat([lowest, *(enlarge(level, lowest) for level in reversed(levels))], dim=1)


class PSENet(nn.Module):
    """Logits of the text and of its six ever smaller kernels, at a quarter of the images' resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.pyramid = Pyramid()
        self.head = nn.Sequential(
            nn.Conv2d(1024, 256, 3, padding=1),
            nn.BatchNorm2d(256),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, KERNELS, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pyramid(self.backbone(images)))
        return logits


def enlarge(features: Tensor, like: Tensor) -> Tensor:
    return functional.interpolate(
        features, size=like.shape[-2:], mode="bilinear", align_corners=False
    )


def make_model(seed: int) -> nn.Module:
    model = PSENet()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.from_numpy(draw_weight(name, weight.shape, seed)))
    return model


def make_optimizer(model: nn.Module, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(),
        lr=config["lr"],
        momentum=config["momentum"],
        weight_decay=config["weight_decay"],
    )


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The published loss of images, text, kernels and what is to be cared for; in fp32, since sums over an image overflow fp16."""
    images, text, kernels, care = batch
    logits = enlarge(model(images), images).float()
    return text_loss(logits, text.float(), kernels.float(), care.float())


def text_loss(logits: Tensor, text: Tensor, kernels: Tensor, care: Tensor) -> Tensor:
    """Dice of the text where it is hard, and of the kernels inside the text."""
    hard = hard_pixels(logits[:, 0].detach(), text, care)
    inside = text * care
    of_kernels = [
        dice(logits[:, number + 1], kernels[:, number], inside)
        for number in range(kernels.shape[1])
    ]
    loss: Tensor = (
        TEXT_WEIGHT * dice(logits[:, 0], text, hard).mean()
        + KERNEL_WEIGHT * torch.stack(of_kernels).mean()
    )
    return loss


def dice(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """One less Dice's coefficient, for each image of a batch."""
    found = (logits.sigmoid() * mask).flatten(1)
    wanted = (target * mask).flatten(1)
    both = (found * wanted).sum(1)
    return 1 - 2 * both / ((found * found).sum(1) + 0.001 + (wanted * wanted).sum(1) + 0.001)


def hard_pixels(scores: Tensor, text: Tensor, care: Tensor) -> Tensor:
    """All text, and three times as many of the other pixels, those that look most like text; image by image, as published."""
    return torch.stack(
        [_hard_pixels_of_one(*planes) for planes in zip(scores, text, care, strict=True)]
    )


def _hard_pixels_of_one(scores: Tensor, text: Tensor, care: Tensor) -> Tensor:
    others = scores[text <= 0.5]
    positives = int(((text > 0.5) & (care > 0.5)).sum())
    kept = min(NEGATIVES_PER_POSITIVE * positives, len(others))
    if kept == 0:
        return care
    threshold = others.sort(descending=True).values[kept - 1]
    return (((scores >= threshold) | (text > 0.5)) & (care > 0.5)).float()
