"""Mean intersection over union of classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from profkit.workloads.datasets.cityscapes import CLASSES, IGNORED


class Confusion:
    """How often each class was taken for each; what is ignored counts nowhere."""

    def __init__(self) -> None:
        self.counts = np.zeros((CLASSES, CLASSES), dtype=np.int64)

    def add(self, truth: Any, found: Any) -> None:
        known = truth != IGNORED
        pairs = truth[known].astype(np.int64) * CLASSES + found[known]
        self.counts += np.bincount(pairs, minlength=CLASSES**2).reshape(CLASSES, CLASSES)

    @property
    def figures(self) -> dict[str, float]:
        """Classes that are neither there nor found are left out of the mean. Without any pixel there is no figure."""
        hits = np.diag(self.counts)
        union = self.counts.sum(0) + self.counts.sum(1) - hits
        if not union.any():
            return {}
        met = union > 0
        return {
            "mean_iou": float((hits[met] / union[met]).mean()),
            "pixel_accuracy": float(hits.sum() / self.counts.sum()),
        }
