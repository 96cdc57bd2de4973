"""HRNetW18 with an FCN head on Cityscapes, the semantic segmentation benchmark."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, MixedPrecision, Parts, Workload
from profkit.workloads.datasets import generate_default
from profkit.workloads.training.network import Ops, builders, make_part

if TYPE_CHECKING:
    from profkit.workloads.datasets.cityscapes import StreetIndex
    from profkit.workloads.hrnet_w18.data import StreetCrops

CROP = (1024, 512)
"""Width and height of the published crop."""

CROPS_PER_FRAME = 4
"""Published crops that have as many pixels as a whole frame."""

POWER = 0.9
"""Exponent of the published poly schedule."""

CONVERGE = {"steps": 150, "batch_size": 4, "image_size": 128, "lr": 0.05, "factor": 0.6}
"""A short run whose last five losses average less than `factor` of the first loss.

Crops differ so much that single losses cannot be compared.
"""


def training_set(build: Build) -> StreetCrops:
    """Open the samples to train on."""
    from profkit.workloads.datasets.cityscapes import check_tree
    from profkit.workloads.hrnet_w18.data import StreetCrops

    height = build.config["image_size"]
    index = check_tree(build.data or Path())
    return StreetCrops(index, (2 * height, height), build.config["seed"], build.bad)


def make_parts(build: Build, ops: Ops) -> Parts:
    """Build the workload with the operations of one framework."""
    from profkit.workloads.datasets.cityscapes import CLASSES, check_tree
    from profkit.workloads.hrnet_w18 import net
    from profkit.workloads.hrnet_w18.data import made_up_batch
    from profkit.workloads.training.sampling import run_length

    config = build.config
    crop, seed = (2 * config["image_size"], config["image_size"]), config["seed"]
    dataset, samples, judge = None, 0, None
    if build.data:
        dataset = training_set(build)
        samples = len(dataset)
        if config.get("evaluate"):
            predict = functools.partial(net.predict, ops)
            judge = functools.partial(evaluate, build, check_tree(build.data, "val"), predict)
    model = net.make_model(ops, CLASSES, seed)
    return Parts(
        model=model,
        optimizer=ops.make_sgd(model, config),
        loss_of=functools.partial(net.loss_of, make_part(ops, net.PixelLoss)),
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, crop, seed),
        lr_at=schedule(run_length(config, samples).steps),
        evaluate=judge,
        sync_bn=True,
        mixed=MixedPrecision(
            first_scale=1024.0,
            white=("add", "elementwise_add", "batch_norm", "sync_batch_norm"),
            black=("bilinear_interp", "bilinear_interp_v2"),
        ),
    )


def schedule(steps: int) -> Callable[[int], float]:
    """Return the poly schedule: a factor that falls from one to zero at the last planned step."""
    return lambda step: float(max(0.0, 1 - step / steps) ** POWER)


def evaluate(
    build: Build, index: StreetIndex, predict: Callable[[Any, Any], Any], model: Any
) -> Mapping[str, float]:
    """Return mean IoU and the share of correct pixels over the whole frames of the split."""
    import numpy as np

    from profkit.workloads.hrnet_w18.data import read_whole
    from profkit.workloads.hrnet_w18.iou import Confusion
    from profkit.workloads.training.evaluation import in_batches, read_ahead

    def load(number: int) -> tuple[Any, Any]:
        return read_whole(index.frames[number], build.bad)

    confusion = Confusion()
    size = max(1, build.config["batch_size"] // CROPS_PER_FRAME)
    frames = read_ahead(load, len(index.frames), build)
    for batch in in_batches(frames, size, lambda frame: frame[1].shape):
        images, labels = zip(*batch, strict=True)
        confusion.add(np.stack(labels), predict(model, np.stack(images)))
    confusion.counts = np.sum(build.gather(confusion.counts), axis=0)
    return confusion.figures


WORKLOAD = Workload(
    name="hrnet_w18",
    title="HRNetW18 with an FCN head",
    data="Cityscapes tree (leftImg8bit, gtFine labelTrainIds)",
    published={
        "image_size": "crops of 1024x512, frames scaled by 0.5 to 2",
        "batch_size": "8 per GPU (1 or 8 GPUs), 4 per GPU (32)",
        "norm": "batch norm over all GPUs",
        "optimizer": "SGD, momentum 0.9, weight decay 5e-4",
        "lr": "0.01 (1 or 8 GPUs), 0.02 (32), poly schedule to the power 0.9",
        "steps": "160,000 (8 GPUs), 80,000 (32), or until the mean IoU is 0.78",
        "precision": "fp32 and AMP",
        "cudnn": "fastest convolution searched for each shape",
    },
    figures=("mean_iou", "pixel_accuracy"),
    departures=("random first weights (published: ImageNet's, distilled)",),
    defaults=Defaults(
        image_size=CROP[1],
        batch_size=8,
        lr=0.01,
        lr_batch=64,
        lr_published={8: 0.01, 64: 0.01, 128: 0.02},
        reduced_image_size=128,
        reduced_batch_size=2,
        weight_decay=5e-4,
    ),
    builders=builders(make_parts),
    generate=functools.partial(generate_default, "cityscapes"),
)
