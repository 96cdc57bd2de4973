"""HRNetW18 with an FCN head on Cityscapes: the semantic segmentation benchmark of the reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, Parts, Workload

if TYPE_CHECKING:
    from profkit.workloads.datasets.cityscapes import StreetIndex

CROP = (1024, 512)
POWER = 0.9

CONVERGE = {"steps": 150, "batch_size": 4, "image_size": 128, "lr": 0.05, "factor": 0.6}
"""A short run on the generated set: the mean of its last five losses is below `factor` of the first. Crops differ so much that single losses do not tell."""


def _build_torch(build: Build) -> Parts:
    from profkit.workloads.hrnet_w18 import torch_net as _hrnet_torch

    return _parts(build, _hrnet_torch)


def _build_paddle(build: Build) -> Parts:
    from profkit.workloads.hrnet_w18 import paddle_net as _hrnet_paddle

    return _parts(build, _hrnet_paddle)


def _parts(build: Build, net: Any) -> Parts:
    """The parts of one framework; `net` is its module of model, loss, optimizer and predictor."""
    from profkit.workloads.datasets.cityscapes import CLASSES, StreetCrops, check_tree
    from profkit.workloads.training.schedules import planned_steps

    config = build.config
    crop = (2 * config["image_size"], config["image_size"])
    index = check_tree(build.data) if build.data else None
    judged = check_tree(build.data, "val") if build.data and config.get("evaluate") else None
    dataset = StreetCrops(index, crop, config["seed"], build.bad) if index else None
    model = net.make_model(CLASSES, config["seed"])
    return Parts(
        model=model,
        optimizer=net.make_optimizer(model, config),
        loss_of=net.loss_of,
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, crop, config["seed"]),
        count=lambda batch: len(batch[1]),
        lr_at=schedule(planned_steps(config, len(dataset) if dataset else 0)),
        evaluate=(lambda trained: evaluate(functools.partial(net.predict, trained), judged, build))
        if judged
        else None,
        sync_bn=True,
    )


def schedule(steps: int) -> Callable[[int], float]:
    """The published poly schedule: from one down to nothing at the last planned step, and no further."""
    return lambda step: float(max(0.0, 1 - step / steps) ** POWER)


def made_up_batch(count: int, crop: tuple[int, int], seed: int) -> tuple[Any, Any]:
    """Noise, and a random class for each pixel."""
    import numpy as np

    from profkit.workloads.datasets.cityscapes import CLASSES

    rng = np.random.default_rng(seed)
    width, height = crop
    return rng.standard_normal((count, 3, height, width), dtype=np.float32), rng.integers(
        0, CLASSES, (count, height, width)
    )


def evaluate(
    predict: Callable[[Any], Any], index: StreetIndex, build: Build
) -> Mapping[str, float]:
    """Mean intersection over union, and the share of pixels that are right, over the whole frames of the split."""
    from profkit.workloads.datasets.cityscapes import read_whole
    from profkit.workloads.hrnet_w18.iou import Confusion
    from profkit.workloads.training.evaluation import read_ahead

    confusion = Confusion()
    frames = read_ahead(
        lambda place: read_whole(index.frames[place], build.bad),
        len(index.frames),
        build.bad,
        build.config.get("workers", 1),
    )
    for image, labels in frames:
        confusion.add(labels, predict(image))
    return confusion.figures


def _generate() -> Path:
    from profkit.workloads.datasets.streets import generate

    return generate()


WORKLOAD = Workload(
    name="hrnet_w18",
    title="HRNetW18 with an FCN head",
    data="Cityscapes tree (leftImg8bit, gtFine labelTrainIds)",
    published={
        "image_size": "crops of 1024x512, frames scaled by 0.5 to 2",
        "batch_size": "8 a GPU (1 or 8 GPUs), 4 a GPU (32)",
        "norm": "batch norm over all GPUs",
        "optimizer": "SGD, momentum 0.9, weight decay 5e-4",
        "lr": "0.01 (1 or 8 GPUs), 0.02 (32), poly schedule to the power 0.9",
        "steps": "160,000 (8 GPUs), 80,000 (32), or until the mean IoU is 0.78",
        "precision": "fp32 and AMP",
    },
    defaults=Defaults(
        image_size=CROP[1],
        batch_size=8,
        lr=0.01,
        lr_batch=64,
        reduced_image_size=128,
        reduced_batch_size=2,
        weight_decay=5e-4,
    ),
    builders={"torch": _build_torch, "paddle": _build_paddle},
    generate=_generate,
)
