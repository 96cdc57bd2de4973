"""Mask R-CNN R50-FPN on COCO: the instance segmentation benchmark of the reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.workloads.base import Build, Defaults, Parts, Workload

if TYPE_CHECKING:
    from profkit.workloads.datasets.coco import CocoIndex, Scaling, Scene

SHORT_SIDE, LONG_SIDE = 800, 1333
ROIS = 512
"""Regions an image of the published size gives the box head to train on."""

WARM_UP, WARM_UP_FROM = 500, 1 / 3
DECAY_SAMPLES = (60_000 * 16, 80_000 * 16)
"""After how many images the learning rate falls to a tenth, and again: the published steps are for batches of 16."""

MADE_UP_INSTANCES = 7
"""As many as COCO's images have in the mean."""

CONVERGE = {"steps": 80, "batch_size": 2, "image_size": 192, "lr": 0.005, "factor": 0.4}
"""A short run on the generated set: the mean of its last five losses is below `factor` of the first."""


def _build_torch(build: Build) -> Parts:
    from profkit.workloads.datasets.coco import CATEGORIES, CocoInstances, Scaling, check_tree
    from profkit.workloads.mask_rcnn import torch_net as net
    from profkit.workloads.training.schedules import planned_steps

    config = build.config
    side = config["image_size"]
    scaling = Scaling(side, round(side * LONG_SIDE / SHORT_SIDE))
    index = check_tree(build.data) if build.data else None
    judged = check_tree(build.data, "val") if build.data and config.get("evaluate") else None
    dataset = CocoInstances(index, scaling, config["seed"], build.bad) if index else None
    rois = round(ROIS * min(1.0, side / SHORT_SIDE))
    warm_up = min(WARM_UP, planned_steps(config, len(dataset) if dataset else 0) // 4)
    model = net.make_model(len(index.categories) if index else CATEGORIES, scaling, rois)
    return Parts(
        model=model,
        optimizer=net.make_optimizer(model, config),
        loss_of=net.loss_of,
        dataset=dataset,
        synthetic=lambda count: made_up_batch(count, scaling, config["seed"]),
        count=lambda batch: len(batch[0]),
        collate=collate,
        groups=dataset.groups() if dataset else None,
        lr_at=schedule(warm_up, config["global_batch_size"]),
        evaluate=(
            lambda trained: evaluate(
                functools.partial(net.predict, trained), judged, scaling, build
            )
        )
        if judged
        else None,
        notes=_departures(rois, warm_up),
    )


def _departures(rois: int, warm_up: int) -> dict[str, Any]:
    return {
        "norm": "batch norm, learned (published: frozen; no backbone is downloaded, and random weights learn nothing behind a frozen norm)",
        "rois_per_image": f"{rois}, as the short side is reduced (published: {ROIS})"
        if rois < ROIS
        else ROIS,
        "lr_warmup_steps": f"{warm_up}, a quarter of the steps (published: {WARM_UP})"
        if warm_up < WARM_UP
        else WARM_UP,
    }


def schedule(warm_up: int, global_batch: int) -> Callable[[int], float]:
    """The factor on the learning rate: from a third up to one, and a tenth after each of the published counts of images."""

    def factor(step: int) -> float:
        if step < warm_up:
            return WARM_UP_FROM + (1 - WARM_UP_FROM) * step / warm_up
        return float(0.1 ** sum(step * global_batch >= samples for samples in DECAY_SAMPLES))

    return factor


def collate(samples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Images differ in size, and are padded by the model."""
    return [image for image, _ in samples], [target for _, target in samples]


def made_up_batch(count: int, scaling: Scaling, seed: int) -> tuple[list[Any], list[Any]]:
    """Noise of the commonest size, with boxes, masks that fill them, and labels."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return collate([_make_up(rng, scaling.of((640, 480))) for _ in range(count)])


def _make_up(rng: Any, size: tuple[int, int]) -> tuple[Any, Mapping[str, Any]]:
    import numpy as np

    from profkit.workloads.datasets.coco import CATEGORIES

    width, height = size
    near = rng.uniform(0, 0.6, (MADE_UP_INSTANCES, 2)) * size
    boxes = np.hstack((near, near + rng.uniform(0.1, 0.4, (MADE_UP_INSTANCES, 2)) * size)).astype(
        np.float32
    )
    masks = np.zeros((MADE_UP_INSTANCES, height, width), dtype=np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
        mask[top:bottom, left:right] = 1
    image = rng.random((3, height, width), dtype=np.float32)
    return image, {
        "boxes": boxes,
        "labels": rng.integers(1, CATEGORIES + 1, MADE_UP_INSTANCES),
        "masks": masks,
    }


def evaluate(
    predict: Callable[[Any], Mapping[str, Any]], index: CocoIndex, scaling: Scaling, build: Build
) -> Mapping[str, float]:
    """Box and mask AP over every image of the split."""
    from profkit.workloads.datasets.coco import read_scene, scale_scene
    from profkit.workloads.mask_rcnn.coco_ap import average_precision, describe
    from profkit.workloads.training.evaluation import read_ahead

    def load(place: int) -> tuple[Scene, Any]:
        scene = index.scenes[place]
        return scene, scale_scene(read_scene(scene, build.bad), scaling)

    seen, found = [], []
    for scene, image in read_ahead(
        load, len(index.scenes), build.bad, build.config.get("workers", 1)
    ):
        seen.append(scene.number)
        found += describe(scene, index.categories, predict(image))
    return average_precision(index.annotations, seen, found)


def _generate() -> Path:
    from profkit.workloads.datasets.coco_scenes import generate

    return generate()


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
        "lr": "0.02 for 16 images (scripts: 0.001 to 0.04 for 32), 500 steps of warm-up from a third",
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
    builders={"torch": _build_torch},
    generate=_generate,
)
