"""The operations of PyTorch for networks; `ops_paddle` has the same names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from profkit.workloads.training.network import Factors, Rule, alike

Module = nn.Module
ModuleList = nn.ModuleList
Sequential = nn.Sequential
Identity = nn.Identity
Dropout = nn.Dropout
Linear = nn.Linear
MaxPool = nn.MaxPool2d
Norm = nn.BatchNorm2d
Relu = nn.ReLU
InPlaceRelu = functools.partial(nn.ReLU, inplace=True)
"""A ReLU layer that overwrites its input, if the framework has one."""

concat = torch.cat
cross_entropy = functional.cross_entropy
no_grad = torch.no_grad
relu = functional.relu
resize = functools.partial(functional.interpolate, mode="bilinear", align_corners=False)
"""Scale images to a height and width."""

stack = torch.stack
to_float = Tensor.float


def conv(inside: int, outside: int, kernel: int, stride: int = 1, *, bias: bool = False) -> Any:
    """Return a convolution that is padded so that only its stride changes the size."""
    return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=bias)


def resnet50(classes: int = 1000) -> Any:
    """Return the framework's ResNet50; each block's last batch norm starts at zero."""
    return torchvision.models.resnet50(weights=None, num_classes=classes, zero_init_residual=True)


def sort_descending(values: Tensor) -> Tensor:
    """Sort the values from the greatest to the least."""
    return values.sort(descending=True).values


def temporal_shift(frames: Tensor, segments: int, ratio: float) -> Tensor:
    """Shift a share of the channels one segment forwards, and as many backwards.

    Zeros come in at the ends of a clip. Paddle has this operation; PyTorch does not.
    """
    clips = frames.unflatten(0, (-1, segments))
    fold = int(frames.shape[1] * ratio)
    late = functional.pad(clips[:, :-1, :fold], (0, 0, 0, 0, 0, 0, 1, 0))
    early = functional.pad(clips[:, 1:, fold : 2 * fold], (0, 0, 0, 0, 0, 0, 0, 1))
    return torch.cat([late, early, clips[:, :, 2 * fold :]], dim=2).flatten(0, 1)


def masked_cross_entropy(scores: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Average the cross-entropy of pixels that have a class; 0, not NaN, if none has one."""
    total = functional.cross_entropy(scores, labels, ignore_index=ignored, reduction="sum")
    mean: Tensor = total / (labels != ignored).sum().clamp(min=1)
    return mean


def to_tensor(array: npt.NDArray[Any], model: nn.Module) -> Tensor:
    """Copy an array to the model's device."""
    return torch.from_numpy(array).to(next(model.parameters()).device)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Copy a tensor to the host."""
    return tensor.cpu().numpy()


def set_weights(model: nn.Module, draw: Callable[[str, Sequence[int]], npt.NDArray[Any]]) -> None:
    """Set each weight to what `draw` returns for its name and shape; matrices are (out, in)."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.from_numpy(draw(name, weight.shape)))


def make_sgd(
    model: nn.Module, config: Mapping[str, Any], rule: Rule = alike
) -> torch.optim.Optimizer:
    """Return SGD with momentum, one group for all weights with the same factors of `rule`."""
    found: dict[Factors, list[Any]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            found.setdefault(rule(name, weight.shape), []).append(weight)
    lr, decay = config["lr"], config["weight_decay"]
    groups = []
    for (lr_factor, decay_factor), weights in found.items():
        group = {"lr": lr * lr_factor, "weight_decay": decay * decay_factor}
        groups.append({"params": weights, **group})
    return torch.optim.SGD(groups, lr=lr, momentum=config["momentum"], weight_decay=decay)
