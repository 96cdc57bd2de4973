"""Average precision of boxes and masks, computed by COCO's own code."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profkit.workloads.datasets.coco import Scene

KINDS = {"box_ap": "bbox", "mask_ap": "segm"}
"""COCO's name for each figure."""


def describe(
    scene: Scene, categories: Sequence[int], found: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return what was found in a scaled image in the format of COCO's results.

    Boxes and masks are in pixels of the image as it is on disk.
    """
    from PIL import Image
    from pycocotools import mask as codec

    shape = found["masks"].shape[1:]
    boxes = found["boxes"] * np.tile(np.divide(scene.size, shape[::-1]), 2)
    results = []
    for number, box in enumerate(boxes):
        soft = Image.fromarray(np.asarray(found["masks"][number], dtype=np.float32))
        mask = np.asarray(soft.resize(scene.size, Image.Resampling.BILINEAR)) > 1 / 2
        results.append(
            {
                "image_id": scene.number,
                "category_id": categories[int(found["labels"][number]) - 1],
                "score": float(found["scores"][number]),
                "bbox": list(map(float, (*box[:2], *(box[2:] - box[:2])))),
                "segmentation": codec.encode(np.asfortranarray(mask, dtype=np.uint8)),
            }
        )
    return results


def average_precision(
    annotations: Path, seen: Iterable[int], found: list[dict[str, Any]]
) -> dict[str, float]:
    """Return AP over overlaps from 0.5 to 0.95, of the images whose ids are in `seen`.

    A kind without anything to find in those images has no figure.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    figures = {}
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        if found:
            results = truth.loadRes(found)
        else:  # COCO's own reader takes an empty list for an error
            results = COCO()
            results.dataset = {**truth.dataset, "annotations": []}
            results.createIndex()
        for name, kind in KINDS.items():
            evaluation = COCOeval(truth, results, kind)
            evaluation.params.imgIds = sorted(seen)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            if evaluation.stats[0] >= 0:
                figures[name] = float(evaluation.stats[0])
    return figures
