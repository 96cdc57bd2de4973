"""ResNet50 v1.5 on ImageNet folders, the classification benchmark."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, MixedPrecision, Parts, Workload
from profkit.workloads.datasets import generate_default
from profkit.workloads.training.network import Ops, builders

if TYPE_CHECKING:
    from profkit.workloads.resnet50.classify import Crops

LR_EPOCHS = (30, 60, 80)
"""Epochs at which the learning rate falls to a tenth."""

CLASSES = 1000
"""Classes of ImageNet. The last layer is as wide for smaller data sets."""

CONVERGE = {"steps": 80, "batch_size": 16, "image_size": 64, "lr": 0.005, "factor": 0.5}
"""A short run on the generated set in which the loss falls below `factor` of its first value."""


def training_set(build: Build) -> Crops:
    """Open the samples to train on."""
    from profkit.workloads.datasets.image_tree import check_tree
    from profkit.workloads.resnet50.classify import Crops

    config = build.config
    index = check_tree(build.data or Path())
    return Crops(index, build.bad, config["image_size"], config["seed"])


def make_parts(build: Build, ops: Ops) -> Parts:
    """Build the workload with the operations of one framework, whose own ResNet50 it trains."""
    from profkit.workloads.resnet50.classify import made_up_batch
    from profkit.workloads.training.sampling import run_length
    from profkit.workloads.training.schedules import step_decay

    config = build.config
    dataset, classes, lr_at, judge = None, CLASSES, None, None
    if build.data:
        dataset = training_set(build)
        classes = max(CLASSES, len(dataset.index.classes))
        lr_at = step_decay(run_length(config, len(dataset)), LR_EPOCHS)
        judge = functools.partial(evaluate, ops, build, build.data)
    model = ops.resnet50(classes)
    size, seed = config["image_size"], config["seed"]
    return Parts(
        model=model,
        optimizer=ops.make_sgd(model, config),
        loss_of=lambda model, batch: ops.cross_entropy(model(batch[0]), batch[1]),
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, size, classes, seed),
        lr_at=lr_at,
        evaluate=judge,
        mixed=MixedPrecision(first_scale=128.0),
    )


def evaluate(ops: Ops, build: Build, data: Path, model: Any) -> Mapping[str, float]:
    """Return the share of validation images whose class is the model's first guess."""
    from profkit.workloads.datasets.image_tree import check_tree
    from profkit.workloads.resnet50.classify import Crops
    from profkit.workloads.training.evaluation import top1

    index, size = check_tree(data, "val"), build.config["image_size"]
    crops = Crops(index, build.bad, size, build.config["seed"], training=False)
    return top1(ops, model, lambda at: crops[0, at], len(crops), build, if_empty=float("nan"))


def _dali(build: Build) -> Iterable[Any]:
    from profkit.workloads.resnet50.dali import open_image_folder

    return open_image_folder(build)


WORKLOAD = Workload(
    name="resnet50",
    title="ResNet50 v1.5",
    data="ImageNet folders (train/<class>/*.JPEG, val/<class>/*.JPEG)",
    published={
        "image_size": 224,
        "batch_size": "128 or 256",
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4",
        "lr": "0.1 for 256 samples, a tenth of it from epochs 30, 60 and 80",
        "loader": "DALI on the CPU, or the framework's own",
        "precision": "fp32 and AMP; Paddle: pure fp16 (--amp O2) on NHWC images",
        "cudnn": "fastest convolution searched for each shape",
    },
    figures=("top1",),
    departures=(
        "weight decay also on batch norm, as in Paddle's runs; NGC PyTorch excludes it",
        "the last batch norm of each block starts at zero",
        "the gradient scale is dynamic from 128, as Paddle's; NGC PyTorch: 256, static",
        "Paddle's AMP runs pad images to four channels; here they have three",
    ),
    channels_last=("torch", "paddle"),
    defaults=Defaults(
        image_size=224,
        batch_size=128,
        lr=0.1,
        lr_batch=256,
        reduced_image_size=128,
        reduced_batch_size=8,
        steps=200,
        reduced_steps=60,
        warmup=20,
        reduced_warmup=10,
    ),
    builders=builders(make_parts),
    generate=functools.partial(generate_default, "imagenet"),
    dali=_dali,
)
