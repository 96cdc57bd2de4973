"""Samples of Mask R-CNN: scenes of COCO at training size, with boxes, labels and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.text import safe_text
from profkit.workloads.base import Key
from profkit.workloads.datasets.coco import (
    CATEGORIES,
    CocoIndex,
    Instance,
    Scene,
    Segmentation,
    Size,
)
from profkit.workloads.training.samples import BadSampleError, BadSamples

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Target = dict[str, Any]
"""`boxes` (corners), `labels` and `masks` of a scene at training size."""

MADE_UP_INSTANCES = 7
"""Instances of a synthetic image: the mean of COCO's images."""

MADE_UP_SIZE = (640, 480)
"""The commonest size of COCO's images."""


@dataclass(frozen=True)
class Scaling:
    """The published rule: the short side becomes `short`, unless the long side exceeds `long`."""

    short: int
    long: int

    def of(self, size: Size) -> Size:
        """Return an image's size at training."""
        less, more = sorted(size)
        short = self.short
        if more * self.short > self.long * less:
            short = round(self.long * less / more)
        long = short * more // less
        if size[0] < size[1]:
            return (short, long)
        return (long, short)


class CocoInstances:
    """Scenes at training size: the image and its target.

    Scenes without anything to train on are excluded. Half of them, drawn for each epoch, are
    mirrored.
    """

    def __init__(self, index: CocoIndex, scaling: Scaling, seed: int, bad: BadSamples) -> None:
        self.scenes = tuple(scene for scene in index.scenes if scene.trains)
        self.categories = index.categories
        self.scaling = scaling
        self.seed = seed
        self.bad = bad

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, key: Key) -> tuple[Floats, Target]:
        epoch, index = key
        scene = self.scenes[index]
        image = scale_scene(read_scene(scene, self.bad), self.scaling)
        target = find_target(scene, self.scaling.of(scene.size))
        if np.random.default_rng((self.seed, epoch, index)).random() < 1 / 2:
            image, target = mirror(image, target)
        return image, target

    def groups(self) -> tuple[int, ...]:
        """Return 1 for upright scenes, else 0: a batch of one kind needs less padding."""
        return tuple(int(scene.size[1] > scene.size[0]) for scene in self.scenes)


def read_scene(scene: Scene, bad: BadSamples) -> Image.Image:
    """Read the image; one whose size is not that of its annotations is a bad sample."""
    image = bad.image(scene.path, scene.size)
    if image.size != scene.size:
        raise BadSampleError(
            f"{safe_text(scene.path)}: {image.size[0]}x{image.size[1]} pixels, "
            f"but its annotations are for {scene.size[0]}x{scene.size[1]}"
        )
    return image


def scale_scene(image: Image.Image, scaling: Scaling) -> Floats:
    """Return the image at training size, channels first, 0 to 1."""
    from PIL import Image as Images

    scaled = np.asarray(image.resize(scaling.of(image.size), Images.Resampling.BILINEAR))
    planes: Floats = np.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=np.float32)
    planes /= 255
    return planes


def find_target(scene: Scene, onto: Size) -> Target:
    """Return the instances to train on, in a scene that is scaled to `onto`."""
    instances = [instance for instance in scene.instances if instance.trains]
    corners = np.reshape([instance.box for instance in instances], (-1, 4))
    corners[:, 2:] += corners[:, :2]
    scaled = corners * np.tile(np.divide(onto, scene.size), 2)
    boxes: Floats = np.clip(scaled, 0, np.tile(onto, 2)).astype(np.float32)
    kept = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    chosen = [instances[place] for place in kept]
    return {
        "boxes": boxes[kept],
        "labels": np.array([instance.label for instance in chosen], dtype=np.int64),
        "masks": draw_masks(chosen, scene.size, onto),
    }


def mirror(image: Floats, target: Target) -> tuple[Floats, Target]:
    """Exchange left and right in the image and in its target."""
    boxes = target["boxes"].copy()
    boxes[:, [0, 2]] = image.shape[2] - boxes[:, [2, 0]]
    masks = np.ascontiguousarray(target["masks"][:, :, ::-1])
    return np.ascontiguousarray(image[:, :, ::-1]), {**target, "boxes": boxes, "masks": masks}


def draw_masks(instances: Sequence[Instance], size: Size, onto: Size) -> Bytes:
    """Draw the masks, 0 or 1, of an image of `size` that is scaled to `onto`: one plane each."""
    planes = np.zeros((len(instances), onto[1], onto[0]), dtype=np.uint8)
    for plane, instance in zip(planes, instances, strict=True):
        plane[:] = draw_mask(instance.segmentation, size, onto)
    return planes


def draw_mask(segmentation: Segmentation, size: Size, onto: Size) -> Bytes:
    """Draw one mask.

    Polygons are scaled and then filled, so that they stay sharp. Run-length codes are decoded and
    then scaled.
    """
    from PIL import Image
    from pycocotools import mask as codec

    if not isinstance(segmentation, dict):
        factors = (onto[0] / size[0], onto[1] / size[1])
        polygons = []
        for polygon in segmentation:
            polygons.append((np.reshape(polygon, (-1, 2)) * factors).ravel().tolist())
        filled: Bytes = codec.decode(codec.merge(codec.frPyObjects(polygons, onto[1], onto[0])))
        return filled
    code: Any = segmentation
    if isinstance(code["counts"], list):
        code = codec.frPyObjects(code, *code["size"])
    plane: Bytes = codec.decode(code)
    if plane.shape == (onto[1], onto[0]):
        return plane
    return np.asarray(Image.fromarray(plane).resize(onto, Image.Resampling.NEAREST))


def collate(samples: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """Keep the images in a list: they differ in size, and the model pads them."""
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def made_up_batch(count: int, scaling: Scaling, seed: int) -> tuple[list[Any], list[Any]]:
    """Return noise of the commonest size, with boxes, masks that fill them, and labels."""
    rng = np.random.default_rng(seed)
    width, height = size = scaling.of(MADE_UP_SIZE)
    images, targets = [], []
    for _ in range(count):
        near = rng.uniform(0, 0.6, (MADE_UP_INSTANCES, 2)) * size
        far = near + rng.uniform(0.1, 0.4, (MADE_UP_INSTANCES, 2)) * size
        boxes = np.hstack((near, far)).astype(np.float32)
        masks = np.zeros((MADE_UP_INSTANCES, height, width), dtype=np.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
            mask[top:bottom, left:right] = 1
        images.append(rng.random((3, height, width), dtype=np.float32))
        labels = rng.integers(1, CATEGORIES + 1, MADE_UP_INSTANCES)
        targets.append({"boxes": boxes, "labels": labels, "masks": masks})
    return images, targets
