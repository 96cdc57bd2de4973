"""ResNet50 v1.5 in PaddlePaddle: `paddle.vision`'s, which has the stride in the 3x3 convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle

from profkit.workloads.training.inference import paddle_predictor as predictor

__all__ = ["loss_of", "make_model", "make_optimizer", "predictor"]


def make_model(classes: int) -> Any:
    """With each block's last batch norm at zero, as the PyTorch version has it: a block begins as the identity."""
    model = paddle.vision.models.resnet50(num_classes=classes)
    for block in model.sublayers():
        if isinstance(block, paddle.vision.models.resnet.BottleneckBlock):
            block.bn3.weight.set_value(paddle.zeros_like(block.bn3.weight))
    return model


def make_optimizer(model: Any, config: Mapping[str, Any]) -> Any:
    return paddle.optimizer.Momentum(
        learning_rate=config["lr"],
        momentum=config["momentum"],
        parameters=model.parameters(),
        weight_decay=config["weight_decay"],
    )


def loss_of(model: Any, batch: Any) -> Any:
    return paddle.nn.functional.cross_entropy(model(batch[0]), batch[1])
