"""ResNet50 v1.5 on ImageNet folders: the classification benchmark of the reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from profkit.workloads.base import Build, Defaults, Parts, Workload

LR_EPOCHS = (30, 60, 80)
CLASSES = 1000

CONVERGE = {"steps": 80, "batch_size": 16, "image_size": 64, "lr": 0.005, "factor": 0.5}
"""A short run on the generated set in which the loss falls below `factor` of its first value."""


def _build_torch(build: Build) -> Parts:
    from profkit.workloads.resnet50 import torch_net as _resnet50_torch

    return _parts(build, _resnet50_torch)


def _build_paddle(build: Build) -> Parts:
    from profkit.workloads.resnet50 import paddle_net as _resnet50_paddle

    return _parts(build, _resnet50_paddle)


def _parts(build: Build, net: Any) -> Parts:
    """The parts of one framework; `net` is its module of model, loss and optimizer."""
    from profkit.workloads.datasets.image_tree import check_tree
    from profkit.workloads.resnet50.classify import TrainingCrops, made_up_batch
    from profkit.workloads.training.schedules import step_decay

    config = build.config
    size, seed = config["image_size"], config["seed"]
    index = check_tree(build.data) if build.data else None
    classes = len(index.classes) if index else CLASSES
    model = net.make_model(classes)
    return Parts(
        model=model,
        optimizer=net.make_optimizer(model, config),
        loss_of=net.loss_of,
        dataset=TrainingCrops(index, build.bad, size, seed) if index else None,
        synthetic=lambda count: made_up_batch(count, size, classes, seed),
        count=lambda batch: len(batch[0]),
        lr_at=step_decay(len(index.samples), config["global_batch_size"], LR_EPOCHS)
        if index
        else None,
        evaluate=(lambda trained: evaluate(trained, net, build)) if build.data else None,
    )


def evaluate(model: Any, net: Any, build: Build) -> Mapping[str, float]:
    """The share of validation images whose class is the model's first guess."""
    import numpy as np

    from profkit.workloads.datasets.image_tree import check_tree
    from profkit.workloads.resnet50.classify import CentreCrops
    from profkit.workloads.training.evaluation import read_ahead

    crops = CentreCrops(
        check_tree(build.data or Path(), "val"), build.bad, build.config["image_size"]
    )
    right = seen = 0
    with net.predictor(model) as predict:
        for image, label in read_ahead(
            crops.__getitem__, len(crops), build.bad, build.config["workers"]
        ):
            right += int(np.argmax(predict(image[np.newaxis])[0]) == label)
            seen += 1
    return {"top1": right / seen if seen else float("nan")}


def _dali(build: Build) -> Iterable[Any]:
    from profkit.workloads.resnet50.dali import open_image_folder

    return open_image_folder(build)


def _generate() -> Path:
    from profkit.workloads.datasets.imagenet import generate

    return generate()


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
        "precision": "fp32 and AMP",
    },
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
    builders={"torch": _build_torch, "paddle": _build_paddle},
    generate=_generate,
    dali=_dali,
)
