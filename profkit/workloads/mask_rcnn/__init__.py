"""Mask R-CNN R50-FPN on COCO, the instance segmentation benchmark, in PyTorch alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, Parts, Workload
from profkit.workloads.datasets import generate_default

if TYPE_CHECKING:
    from profkit.workloads.datasets.coco import CocoIndex, Scene
    from profkit.workloads.mask_rcnn.data import CocoInstances, Scaling

SHORT_SIDE, LONG_SIDE = 800, 1333
ROIS = 512
"""Regions on which the box head trains, per image of the published size."""

WARM_UP, WARM_UP_FROM = 500, 1 / 3
"""Steps of warm-up, and the factor on the learning rate at its start."""

DECAY_SAMPLES = (33_000 * 32, 44_000 * 32)
"""Images after which the learning rate falls to a tenth: published as steps of batches of 32."""

CONVERGE = {"steps": 80, "batch_size": 2, "image_size": 192, "lr": 0.005, "factor": 0.4}
"""A short run whose last five losses average less than `factor` of the first loss."""


def training_set(build: Build) -> CocoInstances:
    """Open the samples to train on."""
    from profkit.workloads.datasets.coco import check_tree
    from profkit.workloads.mask_rcnn.data import CocoInstances

    index = check_tree(build.data or Path())
    return CocoInstances(index, scaling_of(build.config), build.config["seed"], build.bad)


def scaling_of(config: Mapping[str, Any]) -> Scaling:
    """Return the size of images at training."""
    from profkit.workloads.mask_rcnn.data import Scaling

    side = config["image_size"]
    return Scaling(side, round(side * LONG_SIDE / SHORT_SIDE))


def make_parts(build: Build) -> Parts:
    """Build the workload."""
    from profkit.workloads.datasets.coco import CATEGORIES, check_tree
    from profkit.workloads.mask_rcnn import torch_net as net
    from profkit.workloads.mask_rcnn.data import collate, made_up_batch
    from profkit.workloads.training.ops_torch import make_sgd
    from profkit.workloads.training.sampling import run_length

    config, scaling = build.config, scaling_of(build.config)
    dataset, groups, samples, categories, judge = None, None, 0, CATEGORIES, None
    if build.data:
        dataset = training_set(build)
        groups, samples, categories = dataset.groups(), len(dataset), len(dataset.categories)
        if config.get("evaluate"):
            scenes = check_tree(build.data, "val")
            judge = functools.partial(evaluate, build, scenes, scaling, net.predict)
    rois = round(ROIS * min(1.0, scaling.short / SHORT_SIDE))
    warm_up = min(WARM_UP, run_length(config, samples, groups).steps // 4)
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
    model = net.make_model(categories, scaling, rois)
    return Parts(
        model=model,
        # Biases learn at twice the rate and without decay, as published.
        optimizer=make_sgd(
            model, config, lambda name, shape: (2.0, 0.0) if name.endswith("bias") else (1.0, 1.0)
        ),
        loss_of=net.loss_of,
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, scaling, config["seed"]),
        collate=collate,
        groups=groups,
        lr_at=schedule(warm_up, config["global_batch_size"]),
        evaluate=judge,
        notes=notes,
    )


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
    predict: Callable[[Any, Any], Sequence[Mapping[str, Any]]],
    model: Any,
) -> Mapping[str, float]:
    """Return box and mask AP over every image of the split."""
    from profkit.workloads.mask_rcnn.coco_ap import average_precision, describe
    from profkit.workloads.mask_rcnn.data import read_scene, scale_scene
    from profkit.workloads.training.evaluation import in_batches, read_ahead

    def load(number: int) -> tuple[Scene, Any]:
        scene = index.scenes[number]
        return scene, scale_scene(read_scene(scene, build.bad), scaling)

    own_seen, own_found = [], []
    samples = read_ahead(load, len(index.scenes), build)
    for batch in in_batches(samples, build.config["batch_size"]):
        answers = predict(model, [image for _, image in batch])
        for (scene, _), answer in zip(batch, answers, strict=True):
            own_seen.append(scene.number)
            own_found += describe(scene, index.categories, answer)
    seen: list[int] = []
    found: list[dict[str, Any]] = []
    for rank_seen, rank_found in build.gather((own_seen, own_found)):
        seen += rank_seen
        found += rank_found
    return average_precision(index.annotations, seen, found)


WORKLOAD = Workload(
    name="mask_rcnn",
    title="Mask R-CNN R50-FPN",
    data="COCO (instances JSON, polygons and RLE)",
    published={
        "image_size": "short side 800, long side at most 1333",
        "batch_size": "2 or 4 per GPU",
        "batching": "landscape and portrait images in separate batches, padded to multiples of 32",
        "rois_per_image": ROIS,
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4; biases at twice the rate without decay",
        "lr": "0.04 for 32 images (runs: from 0.001), 500 steps of warm-up from a third, "
        "a tenth of it after 1,056,000 images, a hundredth after 1,408,000",
        "frozen": "first convolution and first stage of the backbone",
        "precision": "fp32 and AMP",
    },
    figures=("box_ap", "mask_ap"),
    departures=(
        "random first weights (published: ImageNet's)",
        "batch norm learns, also in the frozen layers' statistics (published: frozen)",
        "the box loss is linear from 1/9 (published: from 1)",
        "the box head gets 2,000 proposals of each image (published: 4,000 of a batch)",
        "fp16 by PyTorch's autocast (published: apex)",
    ),
    defaults=Defaults(
        image_size=SHORT_SIDE,
        batch_size=4,
        lr=0.02,
        lr_batch=16,
        reduced_image_size=192,
        reduced_batch_size=2,
        workers=4,
        autotune=False,
    ),
    builders={"torch": make_parts},
    generate=functools.partial(generate_default, "coco"),
)
