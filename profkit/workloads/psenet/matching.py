"""Matches found boxes with words by ICDAR2015's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profkit.workloads.datasets.icdar import Word
from profkit.workloads.psenet.text_regions import Floats, polygon_area

SUBPIXELS = 16
"""Steps per pixel: Clipper counts in whole numbers."""


@dataclass(frozen=True)
class Matches:
    """Counts of boxes found, of words to find, and of pairs of both."""

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
        f_measure = 0.0
        if precision + recall:
            f_measure = 2 * precision * recall / (precision + recall)
        return {"precision": precision, "recall": recall, "f_measure": f_measure}


def match(found: Sequence[Floats], words: Sequence[Word]) -> Matches:
    """Match boxes with words, each once, if they overlap by more than half of their union.

    Boxes with more than half of their area in an illegible word do not count.
    """
    wanted: list[Floats] = []
    unread: list[Floats] = []
    for word in words:
        quads = wanted if word.legible else unread
        quads.append(np.array(word.corners, dtype=float))
    counted = []
    for box in found:
        if all(_intersection(box, quad) <= polygon_area(box) / 2 for quad in unread):
            counted.append(box)
    left = list(counted)
    for quad in wanted:
        for number, box in enumerate(left):
            both = _intersection(quad, box)
            union = polygon_area(quad) + polygon_area(box) - both
            if union > 0 and both / union > 0.5:
                left.pop(number)
                break
    return Matches(len(counted) - len(left), len(counted), len(wanted))


def _intersection(a: Floats, b: Floats) -> float:
    """Return the area that two polygons share; 0 if one of them has no area."""
    import pyclipper

    clipper: Any = pyclipper.Pyclipper()
    try:
        for polygon, role in ((a, pyclipper.PT_SUBJECT), (b, pyclipper.PT_CLIP)):
            clipper.AddPath(np.round(polygon * SUBPIXELS).astype(int).tolist(), role, True)
    except pyclipper.ClipperException:
        return 0.0
    parts = clipper.Execute(pyclipper.CT_INTERSECTION, pyclipper.PFT_NONZERO, pyclipper.PFT_NONZERO)
    return sum(abs(float(pyclipper.Area(part))) for part in parts) / SUBPIXELS**2
