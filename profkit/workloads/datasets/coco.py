"""Reads a COCO tree, and reports errors in it."""

from __future__ import annotations

import importlib.util
import json
import os
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import UsageError
from profkit.text import safe_text
from profkit.workloads.datasets.tree import check_folder, give_above, reading, unreadable

Size = tuple[int, int]
"""Width and height."""

Segmentation = Sequence[Sequence[float]] | dict[str, Any]
"""Polygons as x, y, x, y ...; or a run-length code, compressed or not.

A run-length code has `counts` and `size` (height, width).
"""

YEARS = ("2017", "2014")
CATEGORIES = 80
"""Categories of COCO. A generated set has as many, so that the model is as wide."""

MIN_POLYGON = 6
"""Numbers of a polygon of three points."""

LISTS = ("images", "annotations", "categories")


@dataclass(frozen=True, slots=True)
class Instance:
    """One annotation.

    `label` counts from 1 in the order of the categories' ids; 0 is the background. `box` is x, y,
    width, height.
    """

    label: int
    box: tuple[float, float, float, float]
    segmentation: Segmentation
    crowd: bool

    @property
    def trains(self) -> bool:
        """False for crowds and empty boxes, which count in the evaluation alone, as published."""
        return not self.crowd and bool(self.segmentation) and min(self.box[2:]) >= 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and its annotations."""

    number: int
    path: str
    size: Size
    instances: tuple[Instance, ...]

    @property
    def trains(self) -> bool:
        return any(instance.trains for instance in self.instances)


@dataclass(frozen=True)
class CocoIndex:
    """One split of a tree. `categories` are the ids of the labels 1, 2, 3 and so on."""

    annotations: Path
    categories: tuple[int, ...]
    scenes: tuple[Scene, ...]


def check_tree(path: Path, split: str = "train") -> CocoIndex:
    """Index `annotations/instances_<split><year>.json`, whose images are in `<split><year>`.

    An `UnreadableError` names what is missing. A missing image is a bad sample of the run.
    """
    if importlib.util.find_spec("pycocotools") is None:
        raise UsageError(
            "COCO's masks need pycocotools, which is not installed here: "
            "pip install 'profkit[systems]'"
        )
    with reading(path):
        annotations, images = _find_parts(path, split)
        try:
            index = _index_file(annotations, images)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = safe_text(str(error))
            if isinstance(error, KeyError):
                reason = f"{reason} is missing from an entry"
            raise unreadable(annotations, f"not as COCO's instance files are: {reason}") from error
        present = set(os.listdir(images))
        names = [os.path.basename(scene.path) for scene in index.scenes]
        if present.isdisjoint(names):
            first = names[0] if names else "(the list is empty)"
            raise unreadable(
                images,
                f"none of the {len(names)} images of {index.annotations.name} is in it, "
                f"the first of them {safe_text(first)}",
            )
        if not any(scene.trains for scene in index.scenes):
            raise unreadable(index.annotations, "no annotation in it that can be trained on")
    return index


def _find_parts(path: Path, split: str) -> tuple[Path, Path]:
    check_folder(path, "'annotations' and 'train2017'")
    folder, shown = path / "annotations", safe_text(str(path))
    if not folder.is_dir():
        remedy = "; COCO's tree has annotations/instances_train2017.json and train2017/*.jpg"
        if (path.absolute().parent / "annotations").is_dir():
            remedy = give_above(path)
        raise unreadable(path, f"no 'annotations' folder in it{remedy}")
    for year in YEARS:
        file, images = folder / f"instances_{split}{year}.json", path / f"{split}{year}"
        if not file.is_file():
            continue
        if not images.is_dir():
            remedy = f"unpack {images.name}.zip there"
            raise unreadable(path, f"no '{images.name}' folder in it; {remedy}")
        return file, images
    raise unreadable(
        folder,
        f"no instances_{split}2017.json in it (nor 2014); "
        f"unpack annotations_trainval2017.zip in {shown}",
    )


def _index_file(annotations: Path, images: Path) -> CocoIndex:
    try:
        content = json.loads(annotations.read_bytes())
    except ValueError as error:
        raise unreadable(annotations, f"not whole JSON: {error}; unpack it again") from error
    for name in LISTS:
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise unreadable(
                annotations, f"no list '{name}' in it; an instances file has {', '.join(LISTS)}"
            )
    categories = sorted(int(category["id"]) for category in content["categories"])
    labels = {number: label for label, number in enumerate(categories, start=1)}
    sizes = {}
    for image in content["images"]:
        sizes[image["id"]] = (int(image["width"]), int(image["height"]))
    instances = defaultdict(list)
    for annotation in content["annotations"]:
        instances[annotation["image_id"]].append(_instance(annotation, labels, sizes))
    scenes = []
    for image in content["images"]:
        number, file = image["id"], os.path.join(images, image["file_name"])
        scenes.append(Scene(number, file, sizes[number], tuple(instances.get(number, ()))))
    return CocoIndex(annotations, tuple(categories), tuple(scenes))


def _instance(
    annotation: Mapping[str, Any], labels: Mapping[int, int], sizes: Mapping[int, Size]
) -> Instance:
    number, image, category = (
        annotation.get("id"),
        annotation["image_id"],
        annotation["category_id"],
    )
    if image not in sizes:
        raise ValueError(
            f"annotation {number} is of image {image}, which is not in the list of images"
        )
    if category not in labels:
        raise ValueError(
            f"annotation {number} has category {category}, which is not in the list of categories"
        )
    left, top, width, height = map(float, annotation["bbox"])
    shape = [sizes[image][1], sizes[image][0]]
    given = annotation["segmentation"]
    segmentation: Segmentation = []
    if isinstance(given, dict):
        if list(given["size"]) != shape:
            raise ValueError(
                f"annotation {number} has a mask of {given['size']} "
                f"in an image of {shape} (height, width)"
            )
        segmentation = {"counts": given["counts"], "size": shape}
    else:
        # Polygons are packed into arrays, as COCO has about a million of them. Other readers of
        # COCO exclude those of fewer than three points as well.
        polygons = []
        for polygon in given:
            if len(polygon) >= MIN_POLYGON and len(polygon) % 2 == 0:
                polygons.append(array("f", polygon))
        segmentation = polygons
    crowd = bool(annotation.get("iscrowd", 0))
    return Instance(labels[category], (left, top, width, height), segmentation, crowd)
