"""The operations of PaddlePaddle for networks; `ops_torch` explains each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import paddle
from paddle import Tensor, nn
from paddle.nn import functional

from profkit.workloads.training.network import Rule, alike

Module = nn.Layer
ModuleList = nn.LayerList
Sequential = nn.Sequential
Identity = nn.Identity
Dropout = nn.Dropout
Linear = nn.Linear
MaxPool = nn.MaxPool2D
Norm = nn.BatchNorm2D
Relu = nn.ReLU
InPlaceRelu = nn.ReLU  # Paddle's layer has no in-place form

concat = paddle.concat
cross_entropy = functional.cross_entropy
no_grad = paddle.no_grad
relu = functional.relu
resize = functools.partial(functional.interpolate, mode="bilinear", align_corners=False)
stack = paddle.stack
temporal_shift = functional.temporal_shift
to_float = functools.partial(paddle.cast, dtype="float32")
to_numpy = Tensor.numpy


def conv(inside: int, outside: int, kernel: int, stride: int = 1, *, bias: bool = False) -> Any:
    return nn.Conv2D(
        inside, outside, kernel, stride, kernel // 2, bias_attr=None if bias else False
    )


def resnet50(classes: int = 1000) -> Any:
    net: Any = paddle.vision.models.resnet50(num_classes=classes)
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        for block in stage:
            block.bn3.weight.set_value(paddle.zeros_like(block.bn3.weight))
    return net


def sort_descending(values: Tensor) -> Tensor:
    return values.sort(descending=True)


def masked_cross_entropy(scores: Tensor, labels: Tensor, ignored: int) -> Tensor:
    total = functional.cross_entropy(scores, labels, ignore_index=ignored, reduction="sum", axis=1)
    mean: Tensor = total / (labels != ignored).sum().clip(min=1).astype("float32")
    return mean


def set_nhwc(model: nn.Layer) -> None:
    """Let all layers work on NHWC images.

    The model must be one in which only layers depend on the order of dimensions.
    """
    for layer in model.sublayers():
        for name in ("data_format", "_data_format"):
            if hasattr(layer, name):
                setattr(layer, name, "NHWC")
    model.takes_nhwc = True


def to_tensor(array: npt.NDArray[Any], model: nn.Layer) -> Tensor:
    if getattr(model, "takes_nhwc", False):
        array = array.transpose(0, 2, 3, 1)
    return paddle.to_tensor(array, place=model.parameters()[0].place)


def set_weights(model: nn.Layer, draw: Callable[[str, Sequence[int]], npt.NDArray[Any]]) -> None:
    for name, weight in model.named_parameters():
        if not weight.trainable:  # Paddle lists the running statistics of norms here as well
            continue
        if len(weight.shape) == 2:  # Paddle's matrices are (in, out)
            weight.set_value(draw(name, weight.shape[::-1]).T)
        else:
            weight.set_value(draw(name, weight.shape))


def make_sgd(
    model: nn.Layer, config: Mapping[str, Any], rule: Rule = alike
) -> paddle.optimizer.Optimizer:
    decay = config["weight_decay"]
    for name, weight in model.named_parameters():
        factors = rule(name, weight.shape)
        if weight.trainable and factors != (1.0, 1.0):
            # Paddle's groups of parameters ignore a decay of their own in this optimizer.
            weight.optimize_attr["learning_rate"] = factors[0]
            weight.regularizer = paddle.regularizer.L2Decay(decay * factors[1])
    return paddle.optimizer.Momentum(
        config["lr"], config["momentum"], parameters=model.parameters(), weight_decay=decay
    )
