"""TSM-ResNet50 on Kinetics-400's extracted frames: the video benchmark of the reports."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.errors import UsageError
from profkit.workloads.base import Build, Defaults, Parts, Workload

if TYPE_CHECKING:
    from profkit.workloads.datasets.kinetics import ClipIndex

SEGMENTS = 8
CLIP_NORM = 20.0
LR_EPOCHS = (20, 40)
PUBLISHED_CLASSES, PUBLISHED_CLIPS = 400, 234_619

CONVERGE = {"steps": 120, "batch_size": 8, "image_size": 64, "lr": 0.0025, "factor": 0.6}
"""A short run on the generated set in which the loss falls below `factor` of its first value."""


def _build_torch(build: Build) -> Parts:
    _check_needs()
    from profkit.workloads.tsm import torch_net as _tsm_torch

    return _parts(build, _tsm_torch)


def _build_paddle(build: Build) -> Parts:
    _check_needs()
    from profkit.workloads.tsm import paddle_net as _tsm_paddle

    return _parts(build, _tsm_paddle)


def _check_needs() -> None:
    if importlib.util.find_spec("PIL") is None:
        raise UsageError(
            "tsm needs pillow, which is not installed here: pip install 'profkit[systems]'"
        )


def _parts(build: Build, net: Any) -> Parts:
    """The parts of one framework; `net` is its module of model, loss, optimizer and predictor."""
    from profkit.workloads.datasets.kinetics import check_tree
    from profkit.workloads.training.schedules import step_decay
    from profkit.workloads.tsm.data import Clips, made_up_batch

    config = build.config
    size, seed = config["image_size"], config["seed"]
    index = check_tree(build.data) if build.data else None
    val = check_tree(build.data, "val") if build.data and config.get("evaluate") else None
    classes = index.classes if index else PUBLISHED_CLASSES
    model = net.make_model(classes, SEGMENTS, seed)
    return Parts(
        model=model,
        optimizer=net.make_optimizer(model, config),
        loss_of=net.loss_of,
        dataset=Clips(index, build.bad, SEGMENTS, size, seed) if index else None,
        synthetic=lambda count: made_up_batch(count, SEGMENTS, size, classes, seed),
        count=lambda batch: len(batch[0]),
        lr_at=step_decay(
            len(index.clips) if index else PUBLISHED_CLIPS, config["global_batch_size"], LR_EPOCHS
        ),
        clip_norm=CLIP_NORM,
        evaluate=(lambda trained: evaluate(trained, net, build, val)) if val else None,
        notes={
            "classes": classes,
            "segments": SEGMENTS,
            "initial_weights": "random (published: ImageNet's)",
        },
    )


def evaluate(model: Any, net: Any, build: Build, index: ClipIndex) -> Mapping[str, float]:
    """The share of clips whose highest score is that of their class, from the middle of the middle frame of each segment."""
    from profkit.workloads.training.evaluation import read_ahead
    from profkit.workloads.tsm.data import Clips

    clips = Clips(
        index, build.bad, SEGMENTS, build.config["image_size"], build.config["seed"], training=False
    )
    right = seen = 0
    with net.predictor(model) as predict:
        for frames, label in read_ahead(
            lambda number: clips[0, number], len(clips), build.bad, build.config.get("workers", 1)
        ):
            right += int(predict(frames[None])[0].argmax() == label)
            seen += 1
    return {"top1": right / seen if seen else 0.0}


def _generate() -> Path:
    from profkit.workloads.datasets.kinetics import generate

    return generate()


WORKLOAD = Workload(
    name="tsm",
    title="TSM-ResNet50",
    data="Kinetics-400 (extracted frames, list files)",
    published={
        "image_size": 224,
        "batch_size": 16,
        "segments": 8,
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4, gradients clipped to a norm of 20",
        "lr": "0.02 for 128 samples, a tenth of it from epoch 20, a hundredth from 40",
        "epochs": 50,
        "dropout": 0.5,
        "initial_weights": "ImageNet's",
        "precision": "fp32 and AMP",
        "top1": 0.71,
    },
    defaults=Defaults(
        image_size=224,
        batch_size=16,
        lr=0.02,
        lr_batch=128,
        reduced_image_size=64,
        reduced_batch_size=2,
        workers=4,
    ),
    builders={"torch": _build_torch, "paddle": _build_paddle},
    generate=_generate,
)
