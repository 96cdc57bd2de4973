"""TSM on a ResNet50: the network and its loss, for both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profkit.workloads.training.first_weights import draw_weight
from profkit.workloads.training.network import Ops, Part, Tensor, make_part

SHIFTED = 8
"""One in so many channels is shifted forwards in time, and as many backwards."""

ZERO_AT_FIRST = "bn3.weight"
"""Each block starts as the identity: a ResNet50 learns little from a small set otherwise."""


class Shifted(Part):
    """A layer that sees an eighth of its channels a segment late, and an eighth early."""

    def __init__(self, layer: Any, segments: int) -> None:
        super().__init__()
        self.layer = layer
        self.segments = segments

    def forward(self, frames: Tensor) -> Tensor:
        return self.layer(self.ops.temporal_shift(frames, self.segments, 1 / SHIFTED))


class TSM(Part):
    """Logits of a clip's class: the mean over its segments."""

    def __init__(self, classes: int, segments: int) -> None:
        super().__init__()
        ops = self.ops
        net = ops.resnet50()
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in stage:
                block.conv1 = make_part(ops, Shifted, block.conv1, segments)
        net.fc = ops.Sequential(ops.Dropout(0.5), ops.Linear(2048, classes))
        self.net = net
        self.segments = segments

    def forward(self, clips: Tensor) -> Tensor:
        scores = self.net(clips.flatten(0, 1))
        return scores.reshape([-1, self.segments, scores.shape[-1]]).mean(1)


def make_model(ops: Ops, classes: int, segments: int, seed: int) -> Any:
    """Return the network with its first weights."""
    model = make_part(ops, TSM, classes, segments)
    ops.set_weights(model, lambda name, shape: draw_weight(name, shape, seed, zero=ZERO_AT_FIRST))
    return model


def loss_of(ops: Ops, model: Any, batch: Sequence[Tensor]) -> Tensor:
    """Return the cross-entropy of the clips' classes, in fp32."""
    clips, labels = batch
    return ops.cross_entropy(ops.to_float(model(clips)), labels)
