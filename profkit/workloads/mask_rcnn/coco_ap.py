"""Average precision of boxes and masks, by COCO's own code."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profkit.workloads.datasets.coco import Scene

KINDS = {"box_ap": "bbox", "mask_ap": "segm"}


def describe(
    scene: Scene, categories: Sequence[int], found: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What was found in a scaled image, in the file format of COCO's results: in pixels of the image as it is on disk."""
    shape = found["masks"].shape[1:]
    stretch = np.tile(np.divide(scene.size, shape[::-1]), 2)
    parts = zip(
        found["boxes"] * stretch, found["labels"], found["scores"], found["masks"], strict=True
    )
    return [
        {
            "image_id": scene.number,
            "category_id": categories[int(label) - 1],
            "score": float(score),
            "bbox": [float(value) for value in (*box[:2], *(box[2:] - box[:2]))],
            "segmentation": _encode(mask, scene.size),
        }
        for box, label, score, mask in parts
    ]


def _encode(mask: Any, size: tuple[int, int]) -> dict[str, Any]:
    from PIL import Image
    from pycocotools import mask as codec

    soft = Image.fromarray(np.asarray(mask, dtype=np.float32)).resize(
        size, Image.Resampling.BILINEAR
    )
    code: dict[str, Any] = codec.encode(np.asfortranarray(np.asarray(soft) > 1 / 2, dtype=np.uint8))
    return code


def average_precision(
    annotations: Path, seen: Iterable[int], found: list[dict[str, Any]]
) -> dict[str, float]:
    """AP over thresholds of overlap from 0.5 to 0.95, of the images whose ids were `seen`.

    A kind that has nothing to be found in those images has no figure.
    """
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        results = truth.loadRes(found) if found else _nothing(truth)
        figures = {name: _judge(truth, results, kind, sorted(seen)) for name, kind in KINDS.items()}
    return {name: figure for name, figure in figures.items() if figure >= 0}


def _nothing(truth: Any) -> Any:
    """Results that are empty, which COCO's own reader takes for an error."""
    from pycocotools.coco import COCO

    empty = COCO()
    empty.dataset = {**truth.dataset, "annotations": []}
    empty.createIndex()
    return empty


def _judge(truth: Any, results: Any, kind: str, images: list[int]) -> float:
    from pycocotools.cocoeval import COCOeval

    judge = COCOeval(truth, results, kind)
    judge.params.imgIds = images
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    return float(judge.stats[0])
