"""The geometry of text detection: kernels inside quadrilaterals, regions grown from kernels, boxes around regions, and how well they match."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.workloads.datasets.icdar import Word

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]

MOST_SHRUNK = 20
_SUBPIXELS = 16


def shrink(quad: Floats, rate: float) -> Floats:
    """The polygon with its border moved inwards, so far that about `rate` of its size is left; as it is where nothing would be.

    The rule of PSENet's code: by whole pixels, and by 20 at most.
    """
    import pyclipper

    area, perimeter = _area(quad), float(np.hypot(*(np.roll(quad, -1, axis=0) - quad).T).sum())
    inwards = min(int(area * (1 - rate * rate) / (perimeter + 0.001) + 0.5), MOST_SHRUNK)
    offset = pyclipper.PyclipperOffset()
    try:
        offset.AddPath(quad.astype(int).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        found = offset.Execute(-inwards)
    except pyclipper.ClipperException:
        return quad
    return np.array(found[0], dtype=float) if found and len(found[0]) > 2 else quad


def _area(polygon: Floats) -> float:
    x, y = polygon.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def expand(kernels: Mask) -> Labels:
    """Each pixel's region, 0 for none: from the connected parts of the last and smallest kernel outwards through the larger ones.

    Progressive scale expansion: a pixel that two regions could take goes to the one that reaches it first.
    """
    labels = connected(kernels[-1])
    for kernel in kernels[-2::-1]:
        labels = _grow(labels, kernel)
    return labels


def connected(mask: Mask) -> Labels:
    """The parts of a mask that touch along edges, numbered from 1; 0 is outside.

    Every pixel takes the greatest number among its neighbours', and then the number of the pixel that this one names,
    so that the steps needed grow with the logarithm of a part's size.
    """
    numbers = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        greatest = np.where(mask, np.maximum(numbers, _greatest_neighbour(numbers)), 0)
        jumped = np.where(mask, np.concatenate(([0], greatest.ravel()))[greatest], 0)
        if np.array_equal(jumped, numbers):
            return np.unique(numbers, return_inverse=True)[1].reshape(mask.shape) + (
                0 if not mask.all() else 1
            )
        numbers = jumped


def _grow(labels: Labels, kernel: Mask) -> Labels:
    while True:
        reached = np.where(kernel & (labels == 0), _greatest_neighbour(labels), 0)
        if not reached.any():
            return labels
        labels = labels + reached


def _greatest_neighbour(labels: Labels) -> Labels:
    padded = np.pad(labels, 1)
    greatest: Labels = np.maximum.reduce(
        [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
    )
    return greatest


def find_quads(labels: Labels, scores: Floats, *, min_score: float, min_area: int) -> list[Floats]:
    """The smallest rectangle around each region that is large and sure enough, in pixels of `labels`."""
    regions = ((labels == number) for number in range(1, int(labels.max(initial=0)) + 1))
    return [
        smallest_rectangle(region)
        for region in regions
        if region.sum() >= min_area and scores[region].mean() >= min_score
    ]


def smallest_rectangle(region: Mask) -> Floats:
    """The four corners of the rectangle of least area, at any angle, that holds all pixels of a region.

    One of its sides lies along a side of the region's convex hull.
    """
    hull = _convex_hull(_border_points(region))
    sides = np.roll(hull, -1, axis=0) - hull
    return min((_rectangle_along(hull, side) for side in sides.tolist()), key=_area)


def _border_points(region: Mask) -> list[tuple[int, int]]:
    """The corners of each row's first and last pixel: the hull needs no others."""
    rows = np.flatnonzero(region.any(axis=1))
    first = region[rows].argmax(axis=1)
    last = region.shape[1] - region[rows, ::-1].argmax(axis=1)
    return sorted(
        {
            (int(x), int(y) + down)
            for y, left, right in zip(rows, first, last, strict=True)
            for x in (left, right)
            for down in (0, 1)
        }
    )


def _convex_hull(points: Sequence[tuple[int, int]]) -> Floats:
    """Andrew's chains over points that are sorted."""
    return np.array(_chain(points)[:-1] + _chain(points[::-1])[:-1], dtype=float)


def _chain(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    chain: list[tuple[int, int]] = []
    for point in points:
        while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _rectangle_along(hull: Floats, side: Sequence[float]) -> Floats:
    along = np.array(side) / np.hypot(side[0], side[1])
    axes = np.stack([along, (-along[1], along[0])])
    turned = hull @ axes.T
    (left, top), (right, bottom) = turned.min(axis=0), turned.max(axis=0)
    corners: Floats = np.array([(left, top), (right, top), (right, bottom), (left, bottom)]) @ axes
    return corners


@dataclass(frozen=True)
class Matches:
    """How many boxes were found, how many words there were to find, and how many of both belong together."""

    matched: int = 0
    found: int = 0
    wanted: int = 0

    def __add__(self, other: Matches) -> Matches:
        return Matches(
            self.matched + other.matched, self.found + other.found, self.wanted + other.wanted
        )

    @property
    def figures(self) -> dict[str, float]:
        precision = self.matched / self.found if self.found else 0.0
        recall = self.matched / self.wanted if self.wanted else 0.0
        both = precision + recall
        return {
            "precision": precision,
            "recall": recall,
            "f_measure": 2 * precision * recall / both if both else 0.0,
        }


def match(found: Sequence[Floats], words: Sequence[Word]) -> Matches:
    """ICDAR2015's rule: a box and a word match where their intersection is more than half of their union, each once.

    Boxes that lie by more than half in an illegible word do not count.
    """
    wanted = [np.array(word.corners, dtype=float) for word in words if word.legible]
    unread = [np.array(word.corners, dtype=float) for word in words if not word.legible]
    counted = [
        box for box in found if all(_intersection(box, quad) <= _area(box) / 2 for quad in unread)
    ]
    left = list(counted)
    for quad in wanted:
        fits = next((number for number, box in enumerate(left) if _overlap(quad, box) > 0.5), None)
        if fits is not None:
            left.pop(fits)
    return Matches(len(counted) - len(left), len(counted), len(wanted))


def _overlap(a: Floats, b: Floats) -> float:
    both = _intersection(a, b)
    union = _area(a) + _area(b) - both
    return both / union if union > 0 else 0.0


def _intersection(a: Floats, b: Floats) -> float:
    """The area that two polygons share; one without area shares none."""
    import pyclipper

    clipper: Any = pyclipper.Pyclipper()
    try:
        clipper.AddPath(_subpixels(a), pyclipper.PT_SUBJECT, True)
        clipper.AddPath(_subpixels(b), pyclipper.PT_CLIP, True)
    except pyclipper.ClipperException:
        return 0.0
    parts = clipper.Execute(pyclipper.CT_INTERSECTION, pyclipper.PFT_NONZERO, pyclipper.PFT_NONZERO)
    return sum(abs(float(pyclipper.Area(part))) for part in parts) / _SUBPIXELS**2


def _subpixels(polygon: Floats) -> list[list[int]]:
    """Clipper counts in whole numbers."""
    whole: list[list[int]] = np.round(polygon * _SUBPIXELS).astype(int).tolist()
    return whole
