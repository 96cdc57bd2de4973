"""The geometry of text detection: kernels, regions grown from them, and boxes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]
Point = tuple[int, int]

MAX_SHRINK = 20
"""The most pixels by which PSENet's code moves a polygon's edge inwards."""


def shrink(quad: Floats, rate: float) -> Floats:
    """Move a polygon's edge inwards so that about `rate` of its size remains.

    The polygon stays as it is if nothing would remain. As in PSENet's code the edge moves by whole
    pixels.
    """
    import pyclipper

    sides = np.roll(quad, -1, axis=0) - quad
    perimeter = float(np.hypot(*sides.T).sum())
    inwards = int(polygon_area(quad) * (1 - rate * rate) / (perimeter + 0.001) + 0.5)
    offset = pyclipper.PyclipperOffset()
    try:
        offset.AddPath(quad.astype(int).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        found = offset.Execute(-min(inwards, MAX_SHRINK))
    except pyclipper.ClipperException:
        return quad
    if found and len(found[0]) > 2:
        return np.array(found[0], dtype=float)
    return quad


def polygon_area(polygon: Floats) -> float:
    """Return the area inside a polygon."""
    x, y = polygon.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def expand(kernels: Mask) -> Labels:
    """Return each pixel's region, 0 for none, by progressive scale expansion.

    Regions start as the connected parts of the last and smallest kernel, and grow outwards through
    the larger ones. A pixel between two regions goes to the one that reaches it first.
    """
    labels = connected(kernels[-1])
    for kernel in kernels[-2::-1]:
        while True:
            reached = np.where(kernel & (labels == 0), _greatest_neighbour(labels), 0)
            if not reached.any():
                break
            labels = labels + reached
    return labels


def connected(mask: Mask) -> Labels:
    """Number the parts of a mask that touch along edges, from 1; 0 is outside.

    Every pixel takes the greatest number among its neighbours', and then the number of the pixel
    with that number, so that the steps grow with the logarithm of a part's size.
    """
    numbers = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        greatest = np.where(mask, np.maximum(numbers, _greatest_neighbour(numbers)), 0)
        jumped = np.where(mask, np.concatenate(([0], greatest.ravel()))[greatest], 0)
        if np.array_equal(jumped, numbers):
            break
        numbers = jumped
    labels: Labels = np.unique(numbers, return_inverse=True)[1].reshape(mask.shape)
    if mask.all():
        return labels + 1
    return labels


def _greatest_neighbour(labels: Labels) -> Labels:
    padded = np.pad(labels, 1)
    greatest: Labels = np.maximum.reduce(
        [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]]
    )
    return greatest


def find_quads(labels: Labels, scores: Floats, *, min_score: float, min_area: int) -> list[Floats]:
    """Return the smallest rectangle around each region that is large and certain enough.

    Rectangles are in pixels of `labels`.
    """
    quads = []
    for number in range(1, int(labels.max(initial=0)) + 1):
        region = labels == number
        if region.sum() >= min_area and scores[region].mean() >= min_score:
            quads.append(smallest_rectangle(region))
    return quads


def smallest_rectangle(region: Mask) -> Floats:
    """Return the corners of the rectangle of least area, at any angle, around a region.

    One of its sides is parallel to a side of the region's convex hull.
    """
    # The corners of each row's first and last pixel; the hull needs no others.
    rows = np.flatnonzero(region.any(axis=1))
    first = region[rows].argmax(axis=1)
    last = region.shape[1] - region[rows, ::-1].argmax(axis=1)
    found = set()
    for y, left, right in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
        found |= {(left, y), (right, y), (left, y + 1), (right, y + 1)}
    points = sorted(found)
    # The hull by Andrew's algorithm: one chain from left to right, and one back.
    hull = np.array(_chain(points)[:-1] + _chain(points[::-1])[:-1], dtype=float)
    rectangles: list[Floats] = []
    for side in np.roll(hull, -1, axis=0) - hull:
        along = side / np.hypot(*side)
        axes = np.stack([along, (-along[1], along[0])])
        turned = hull @ axes.T
        (west, north), (east, south) = turned.min(axis=0), turned.max(axis=0)
        corners = np.array([(west, north), (east, north), (east, south), (west, south)])
        rectangles.append(corners @ axes)
    return min(rectangles, key=polygon_area)


def _chain(points: Iterable[Point]) -> list[Point]:
    """Return the points of one half of the hull."""
    chain: list[Point] = []
    for point in points:
        while len(chain) > 1:
            (ax, ay), (bx, by) = chain[-2:]
            if (bx - ax) * (point[1] - ay) > (by - ay) * (point[0] - ax):  # it turns left
                break
            chain.pop()
        chain.append(point)
    return chain
