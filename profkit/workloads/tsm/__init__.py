"""TSM-ResNet50 on Kinetics-400's extracted frames, the video benchmark."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, MixedPrecision, Parts, Workload
from profkit.workloads.datasets import generate_default
from profkit.workloads.training.network import Ops, builders

if TYPE_CHECKING:
    from profkit.workloads.datasets.kinetics import ClipIndex
    from profkit.workloads.tsm.data import Clips

SEGMENTS = 8
"""Frames of each clip that the network sees."""

CLIP_NORM = 20.0
"""Norm to which gradients are clipped."""

LR_EPOCHS = (20, 40)
"""Epochs at which the learning rate falls to a tenth."""

CLASSES, PUBLISHED_CLIPS = 400, 234_619
"""Classes of Kinetics-400, and its training clips for the schedule without a data set.

The last layer is as wide for smaller data sets.
"""

CONVERGE = {"steps": 120, "batch_size": 8, "image_size": 64, "lr": 0.0025, "factor": 0.6}
"""A short run on the generated set in which the loss falls below `factor` of its first value."""


def training_set(build: Build) -> Clips:
    """Open the samples to train on."""
    from profkit.workloads.datasets.kinetics import check_tree
    from profkit.workloads.tsm.data import Clips

    config = build.config
    index = check_tree(build.data or Path())
    return Clips(index, build.bad, SEGMENTS, config["image_size"], config["seed"])


def make_parts(build: Build, ops: Ops) -> Parts:
    """Build the workload with the operations of one framework."""
    from profkit.workloads.datasets.kinetics import check_tree
    from profkit.workloads.training.sampling import run_length
    from profkit.workloads.training.schedules import step_decay
    from profkit.workloads.tsm import net
    from profkit.workloads.tsm.data import made_up_batch

    config = build.config
    size, seed = config["image_size"], config["seed"]
    dataset, samples, classes, judge = None, PUBLISHED_CLIPS, CLASSES, None
    if build.data:
        dataset = training_set(build)
        samples, classes = len(dataset), max(CLASSES, dataset.index.classes)
        if config.get("evaluate"):
            judge = functools.partial(evaluate, ops, build, check_tree(build.data, "val"))
    model = net.make_model(ops, classes, SEGMENTS, seed)
    return Parts(
        model=model,
        optimizer=ops.make_sgd(model, config, factors),
        loss_of=functools.partial(net.loss_of, ops),
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, SEGMENTS, size, classes, seed),
        lr_at=step_decay(run_length(config, samples), LR_EPOCHS),
        clip_norm=CLIP_NORM,
        evaluate=judge,
        mixed=MixedPrecision(black=("mean", "reduce_mean")),
        notes={
            "classes": classes,
            "segments": SEGMENTS,
            "initial_weights": "random (published: ImageNet's)",
        },
    )


def factors(name: str, shape: Sequence[int]) -> tuple[float, float]:
    """Return a weight's factors on learning rate and decay, as published.

    The last layer learns faster, and neither its bias nor the norms decay.
    """
    if ".fc." in name:
        if name.endswith("weight"):
            return (5.0, 1.0)
        return (10.0, 0.0)
    is_norm = len(shape) == 1
    if is_norm:
        return (1.0, 0.0)
    return (1.0, 1.0)


def evaluate(ops: Ops, build: Build, index: ClipIndex, model: Any) -> Mapping[str, float]:
    """Return top-1 over the centre crop of the middle frame of each segment."""
    from profkit.workloads.training.evaluation import top1
    from profkit.workloads.tsm.data import Clips

    config = build.config
    size, seed = config["image_size"], config["seed"]
    clips = Clips(index, build.bad, SEGMENTS, size, seed, training=False)
    return top1(ops, model, lambda number: clips[0, number], len(clips), build)


WORKLOAD = Workload(
    name="tsm",
    title="TSM-ResNet50",
    data="Kinetics-400 (extracted frames, list files)",
    published={
        "image_size": 224,
        "batch_size": 16,
        "segments": 8,
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4 (norms and biases: none), "
        "gradients clipped to a norm of 20, last layer at 5 (bias: 10) times the rate",
        "lr": "0.02 for 128 samples, a tenth of it from epoch 20, a hundredth from 40",
        "epochs": 50,
        "dropout": 0.5,
        "initial_weights": "ImageNet's",
        "precision": "fp32 and AMP",
        "cudnn": "fastest convolution searched for each shape",
        "top1": 0.71,
    },
    figures=("top1",),
    departures=("random first weights (published: ImageNet's)",),
    defaults=Defaults(
        image_size=224,
        batch_size=16,
        lr=0.02,
        lr_batch=128,
        reduced_image_size=64,
        reduced_batch_size=2,
        workers=4,
    ),
    builders=builders(make_parts),
    generate=functools.partial(generate_default, "kinetics"),
    needs={"pillow": "PIL"},
)
