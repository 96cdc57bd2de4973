"""Reads a COCO tree: what is in it, what is wrong with it, and the instances of an image at the size that training wants."""

from __future__ import annotations

import importlib.util
import json
import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.errors import UnreadableError, UsageError
from profkit.text import safe_text
from profkit.workloads.training.samples import BadSampleError, BadSamples

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Size = tuple[int, int]
"""Width and height."""

Segmentation = Sequence[Sequence[float]] | dict[str, Any]
"""Polygons as x, y, x, y ...; or a run-length code, `counts` and `size` (height, width), compressed or not."""

YEARS = ("2017", "2014")
CATEGORIES = 80
"""What COCO has; a generated set has as many, so that the model is as wide."""

_SMALLEST_POLYGON = 6
_LISTS = ("images", "annotations", "categories")


@dataclass(frozen=True, slots=True)
class Instance:
    """One annotation. `label` counts from 1 in the order of the categories' ids, as 0 is the background; `box` is x, y, width, height."""

    label: int
    box: tuple[float, float, float, float]
    segmentation: Segmentation
    crowd: bool

    @property
    def trains(self) -> bool:
        """Crowds and empty boxes count in the evaluation alone, as in the published training."""
        return not self.crowd and bool(self.segmentation) and min(self.box[2:]) >= 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and what is to be found in it."""

    number: int
    path: str
    size: Size
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class CocoIndex:
    """One split of a tree. `categories` are the ids of the labels 1, 2, 3 and so on."""

    annotations: Path
    categories: tuple[int, ...]
    scenes: tuple[Scene, ...]


@dataclass(frozen=True)
class Scaling:
    """The published rule: the short side to `short`, unless the long one would then be beyond `long`."""

    short: int
    long: int

    def of(self, size: Size) -> Size:
        less, more = sorted(size)
        short = (
            round(self.long * less / more) if more * self.short > self.long * less else self.short
        )
        long = short * more // less
        return (short, long) if size[0] < size[1] else (long, short)


# The tree


def check_tree(path: Path, split: str = "train") -> CocoIndex:
    """The scenes of `annotations/instances_<split><year>.json`, whose images lie in `<split><year>`.

    An `UnreadableError` says what is missing where. Single images that are missing are left to those that read them.
    """
    try:
        return _index_tree(path, split)
    except OSError as error:
        raise UnreadableError(
            f"{safe_text(str(error.filename or path))}: cannot be read: {error.strerror or error}"
        ) from error


def _index_tree(path: Path, split: str) -> CocoIndex:
    if importlib.util.find_spec("pycocotools") is None:
        raise UsageError(
            "COCO's masks need pycocotools, which is not installed here: pip install 'profkit[systems]'"
        )
    annotations, images = _find_parts(path, split)
    content = _read_lists(annotations)
    try:
        index = _index_lists(content, annotations, images)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(
            f"{safe_text(str(annotations))}: not as COCO's instance files are: {_what_failed(error)}"
        ) from error
    _check_scenes(index, images)
    return index


def _find_parts(path: Path, split: str) -> tuple[Path, Path]:
    shown = safe_text(str(path))
    if not path.exists():
        raise UnreadableError(f"{shown}: no such folder")
    if not (path / "annotations").is_dir():
        raise UnreadableError(f"{shown}: no 'annotations' folder in it{_what_it_is(path)}")
    year = next(
        (
            year
            for year in YEARS
            if (path / "annotations" / f"instances_{split}{year}.json").is_file()
        ),
        None,
    )
    if year is None:
        raise UnreadableError(
            f"{shown}/annotations: no instances_{split}2017.json in it (nor 2014); unpack annotations_trainval2017.zip in {shown}"
        )
    if not (path / f"{split}{year}").is_dir():
        raise UnreadableError(
            f"{shown}: no '{split}{year}' folder in it; unpack {split}{year}.zip there"
        )
    return path / "annotations" / f"instances_{split}{year}.json", path / f"{split}{year}"


def _what_it_is(path: Path) -> str:
    if path.is_file():
        return "; it is a file, so give the folder that holds 'annotations' and 'train2017'"
    if (path.absolute().parent / "annotations").is_dir():
        return f"; give the folder above it: {safe_text(str(path.absolute().parent))}"
    return "; COCO's tree has annotations/instances_train2017.json and train2017/*.jpg"


def _read_lists(file: Path) -> Mapping[str, Any]:
    shown = safe_text(str(file))
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UnreadableError(f"{shown}: not whole JSON: {error}; unpack it again") from error
    for name in _LISTS:
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise UnreadableError(
                f"{shown}: no list '{name}' in it; an instances file has {', '.join(_LISTS)}"
            )
    lists: Mapping[str, Any] = content
    return lists


def _index_lists(content: Mapping[str, Any], annotations: Path, images: Path) -> CocoIndex:
    categories = tuple(sorted(int(category["id"]) for category in content["categories"]))
    labels = {number: label for label, number in enumerate(categories, start=1)}
    sizes = {
        image["id"]: (int(image["width"]), int(image["height"])) for image in content["images"]
    }
    instances = defaultdict(list)
    for annotation in content["annotations"]:
        instances[annotation["image_id"]].append(_instance(annotation, labels, sizes))
    scenes = (
        Scene(
            image["id"],
            os.path.join(images, image["file_name"]),
            sizes[image["id"]],
            tuple(instances.get(image["id"], ())),
        )
        for image in content["images"]
    )
    return CocoIndex(annotations, categories, tuple(scenes))


def _instance(
    annotation: Mapping[str, Any], labels: Mapping[int, int], sizes: Mapping[int, Size]
) -> Instance:
    number = annotation.get("id")
    if annotation["image_id"] not in sizes:
        raise ValueError(
            f"annotation {number} is of image {annotation['image_id']}, which is not in the list of images"
        )
    if annotation["category_id"] not in labels:
        raise ValueError(
            f"annotation {number} has category {annotation['category_id']}, which is not in the list of categories"
        )
    left, top, width, height = map(float, annotation["bbox"])
    segmentation = _usable(annotation["segmentation"], sizes[annotation["image_id"]], number)
    return Instance(
        labels[annotation["category_id"]],
        (left, top, width, height),
        segmentation,
        bool(annotation.get("iscrowd", 0)),
    )


def _usable(segmentation: Any, size: Size, number: object) -> Segmentation:
    """Polygons of fewer than three points are left out, as other readers of COCO do. Packed, as COCO has about a million of them."""
    if isinstance(segmentation, dict):
        if list(segmentation["size"]) != [size[1], size[0]]:
            raise ValueError(
                f"annotation {number} has a mask of {segmentation['size']} in an image of {[size[1], size[0]]} (height, width)"
            )
        return {"counts": segmentation["counts"], "size": [size[1], size[0]]}
    return [
        array("f", polygon)
        for polygon in segmentation
        if len(polygon) >= _SMALLEST_POLYGON and len(polygon) % 2 == 0
    ]


def _what_failed(error: Exception) -> str:
    return (
        f"no {safe_text(str(error))} where there should be one"
        if isinstance(error, KeyError)
        else safe_text(str(error))
    )


def _check_scenes(index: CocoIndex, images: Path) -> None:
    there = {entry.name for entry in os.scandir(images)}
    if not any(os.path.basename(scene.path) in there for scene in index.scenes):
        first = os.path.basename(index.scenes[0].path) if index.scenes else "(the list is empty)"
        raise UnreadableError(
            f"{safe_text(str(images))}: none of the {len(index.scenes)} images of {index.annotations.name} is in it, the first of them {safe_text(first)}"
        )
    if not any(instance.trains for scene in index.scenes for instance in scene.instances):
        raise UnreadableError(
            f"{safe_text(str(index.annotations))}: no annotation in it that can be trained on"
        )


# Masks


def draw_masks(instances: Sequence[Instance], size: Size, onto: Size) -> Bytes:
    """The instances' masks, 0 or 1, of an image of `size`, in that image scaled to `onto`: one plane each."""
    planes = np.zeros((len(instances), onto[1], onto[0]), dtype=np.uint8)
    for plane, instance in zip(planes, instances, strict=True):
        plane[:] = draw_mask(instance.segmentation, size, onto)
    return planes


def draw_mask(segmentation: Segmentation, size: Size, onto: Size) -> Bytes:
    """One mask. Polygons are scaled and then filled, so that they stay sharp; run-length codes are decoded and then scaled."""
    if isinstance(segmentation, dict):
        return _stretch(_decode(segmentation), onto)
    factors = (onto[0] / size[0], onto[1] / size[1])
    return _fill(
        [(np.reshape(polygon, (-1, 2)) * factors).ravel().tolist() for polygon in segmentation],
        onto,
    )


def _fill(polygons: list[list[float]], size: Size) -> Bytes:
    from pycocotools import mask

    codes = mask.frPyObjects(polygons, size[1], size[0])
    filled: Bytes = mask.decode(mask.merge(codes))
    return filled


def _decode(code: Mapping[str, Any]) -> Bytes:
    from pycocotools import mask

    height, width = code["size"]
    packed = mask.frPyObjects(code, height, width) if isinstance(code["counts"], list) else code
    decoded: Bytes = mask.decode(packed)
    return decoded


def _stretch(plane: Bytes, onto: Size) -> Bytes:
    from PIL import Image

    if plane.shape == (onto[1], onto[0]):
        return plane
    return np.asarray(Image.fromarray(plane).resize(onto, Image.Resampling.NEAREST))


# The data set


class CocoInstances:
    """Scenes at training size: the image (see `scale_scene`) and its `boxes` (corners), `labels` and `masks`.

    Those without anything to train on are left out. Half of them, drawn for each epoch, are mirrored.
    """

    def __init__(self, index: CocoIndex, scaling: Scaling, seed: int, bad: BadSamples) -> None:
        self.scenes = tuple(
            scene for scene in index.scenes if any(instance.trains for instance in scene.instances)
        )
        self.scaling = scaling
        self.seed = seed
        self.bad = bad

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, key: tuple[int, int]) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        epoch, index = key
        scene = self.scenes[index]
        image = scale_scene(read_scene(scene, self.bad), self.scaling)
        target = find_target(scene, self.scaling.of(scene.size))
        if np.random.default_rng((self.seed, epoch, index)).random() < 1 / 2:
            image, target = mirror(image, target)
        return image, target

    def groups(self) -> tuple[int, ...]:
        """1 for scenes higher than wide: a batch of one kind needs less padding."""
        return tuple(int(scene.size[1] > scene.size[0]) for scene in self.scenes)


def read_scene(scene: Scene, bad: BadSamples) -> Image.Image:
    """The image at the size that its annotations are made for; another size is a bad sample."""
    image = bad.image(scene.path, scene.size)
    if image.size != scene.size:
        raise BadSampleError(
            f"{safe_text(scene.path)}: {image.size[0]}x{image.size[1]} pixels, but its annotations are for {scene.size[0]}x{scene.size[1]}"
        )
    return image


def scale_scene(image: Image.Image, scaling: Scaling) -> npt.NDArray[np.float32]:
    """The image at training size, channels first, 0 to 1."""
    from PIL import Image as Images

    scaled = image.resize(scaling.of(image.size), Images.Resampling.BILINEAR)
    planes: npt.NDArray[np.float32] = np.ascontiguousarray(
        np.asarray(scaled).transpose(2, 0, 1), dtype=np.float32
    )
    planes /= 255
    return planes


def find_target(scene: Scene, onto: Size) -> dict[str, Any]:
    """What is to be found in a scene that is scaled to `onto`."""
    instances = [instance for instance in scene.instances if instance.trains]
    boxes = scale_boxes((instance.box for instance in instances), scene.size, onto)
    kept = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    chosen = [instances[place] for place in kept]
    return {
        "boxes": boxes[kept],
        "labels": np.array([instance.label for instance in chosen], dtype=np.int64),
        "masks": draw_masks(chosen, scene.size, onto),
    }


def scale_boxes(
    boxes: Iterable[tuple[float, float, float, float]], size: Size, onto: Size
) -> npt.NDArray[np.float32]:
    """Corners in the scaled image, within its borders, of boxes that are told as x, y, width, height."""
    corners = np.reshape(
        [(left, top, left + width, top + height) for left, top, width, height in boxes], (-1, 4)
    )
    scaled = corners * np.tile(np.divide(onto, size), 2)
    within: npt.NDArray[np.float32] = np.clip(scaled, 0, np.tile(onto, 2)).astype(np.float32)
    return within


def mirror(
    image: npt.NDArray[np.float32], target: Mapping[str, Any]
) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Left and right exchanged, in the image and in what is to be found in it."""
    boxes = target["boxes"].copy()
    boxes[:, [0, 2]] = image.shape[2] - boxes[:, [2, 0]]
    masks = np.ascontiguousarray(target["masks"][:, :, ::-1])
    return np.ascontiguousarray(image[:, :, ::-1]), {**target, "boxes": boxes, "masks": masks}
