"""Mask R-CNN R50-FPN on COCO, the instance segmentation benchmark, in PyTorch alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, Parts, Workload
from profkit.workloads.datasets import generate_default

if TYPE_CHECKING:
    from profkit.workloads.datasets.coco import CocoIndex, Scene
    from profkit.workloads.mask_rcnn.data import Scaling

SHORT_SIDE, LONG_SIDE = 800, 1333
ROIS = 512
"""Regions on which the box head trains, per image of the published size."""

WARM_UP, WARM_UP_FROM = 500, 1 / 3
"""Steps of warm-up, and the factor on the learning rate at its start."""

DECAY_SAMPLES = (60_000 * 16, 80_000 * 16)
"""Images after which the learning rate falls to a tenth: published as steps of batches of 16."""

CONVERGE = {"steps": 80, "batch_size": 2, "image_size": 192, "lr": 0.005, "factor": 0.4}
"""A short run whose last five losses average less than `factor` of the first loss."""


def make_parts(build: Build) -> Parts:
    """Build the workload."""
    from profkit.workloads.datasets.coco import CATEGORIES, check_tree
    from profkit.workloads.mask_rcnn import torch_net as net
    from profkit.workloads.mask_rcnn.data import CocoInstances, Scaling, collate, made_up_batch
    from profkit.workloads.training.schedules import planned_steps

    config = build.config
    side, seed = config["image_size"], config["seed"]
    scaling = Scaling(side, round(side * LONG_SIDE / SHORT_SIDE))
    dataset, samples, categories, judge = None, 0, CATEGORIES, None
    if build.data:
        index = check_tree(build.data)
        dataset = CocoInstances(index, scaling, seed, build.bad)
        samples, categories = len(dataset), len(index.categories)
        if config.get("evaluate"):
            scenes = check_tree(build.data, "val")
            judge = functools.partial(evaluate, build, scenes, scaling, net.predict)
    rois = round(ROIS * min(1.0, side / SHORT_SIDE))
    warm_up = min(WARM_UP, planned_steps(config, samples) // 4)
    model = net.make_model(categories, scaling, rois)
    return Parts(
        model=model,
        optimizer=net.make_optimizer(model, config),
        loss_of=net.loss_of,
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, scaling, seed),
        count=lambda batch: len(batch[0]),
        collate=collate,
        groups=dataset.groups() if dataset else None,
        lr_at=schedule(warm_up, config["global_batch_size"]),
        evaluate=judge,
        notes=_departures(rois, warm_up),
    )


def _departures(rois: int, warm_up: int) -> dict[str, Any]:
    """Return the departures from the published settings, for the run's configuration."""
    notes: dict[str, Any] = {
        "norm": "batch norm, learned (published: frozen; no backbone is downloaded, "
        "and random weights learn nothing behind a frozen norm)",
        "rois_per_image": ROIS,
        "lr_warmup_steps": WARM_UP,
    }
    if rois < ROIS:
        notes["rois_per_image"] = f"{rois}, as the short side is reduced (published: {ROIS})"
    if warm_up < WARM_UP:
        notes["lr_warmup_steps"] = f"{warm_up}, a quarter of the steps (published: {WARM_UP})"
    return notes


def schedule(warm_up: int, global_batch: int) -> Callable[[int], float]:
    """Return the factor on the learning rate: a warm-up, then two falls to a tenth."""

    def factor(step: int) -> float:
        if step < warm_up:
            return WARM_UP_FROM + (1 - WARM_UP_FROM) * step / warm_up
        return float(0.1 ** sum(step * global_batch >= samples for samples in DECAY_SAMPLES))

    return factor


def evaluate(
    build: Build,
    index: CocoIndex,
    scaling: Scaling,
    predict: Callable[[Any, Any], Mapping[str, Any]],
    model: Any,
) -> Mapping[str, float]:
    """Return box and mask AP over every image of the split."""
    from profkit.workloads.mask_rcnn.coco_ap import average_precision, describe
    from profkit.workloads.mask_rcnn.data import read_scene, scale_scene
    from profkit.workloads.training.evaluation import read_ahead

    def load(number: int) -> tuple[Scene, Any]:
        scene = index.scenes[number]
        return scene, scale_scene(read_scene(scene, build.bad), scaling)

    seen, found = [], []
    for scene, image in read_ahead(load, len(index.scenes), build):
        seen.append(scene.number)
        found += describe(scene, index.categories, predict(model, image))
    return average_precision(index.annotations, seen, found)


WORKLOAD = Workload(
    name="mask_rcnn",
    title="Mask R-CNN R50-FPN",
    data="COCO (instances JSON, polygons and RLE)",
    published={
        "image_size": "short side 800, long side at most 1333",
        "batch_size": "2 or 4 a GPU",
        "batching": "landscape and portrait apart, padded to multiples of 32",
        "rois_per_image": ROIS,
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4; biases at twice the rate without decay",
        "lr": "0.02 for 16 images (scripts: 0.001 to 0.04 for 32), "
        "500 steps of warm-up from a third",
        "precision": "fp32 and AMP",
    },
    defaults=Defaults(
        image_size=SHORT_SIDE,
        batch_size=4,
        lr=0.02,
        lr_batch=16,
        reduced_image_size=192,
        reduced_batch_size=2,
        workers=4,
    ),
    builders={"torch": make_parts},
    generate=functools.partial(generate_default, "coco"),
)
