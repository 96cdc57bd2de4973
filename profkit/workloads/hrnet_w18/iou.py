"""Mean intersection over union of classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profkit.workloads.datasets.cityscapes import CLASSES, IGNORED


@dataclass
class Confusion:
    """Counts of pixels by true and found class; ignored pixels are excluded."""

    counts: Any = field(default_factory=lambda: np.zeros((CLASSES, CLASSES), dtype=np.int64))

    def add(self, truth: Any, found: Any) -> None:
        """Count the pixels of one image."""
        known = truth != IGNORED
        pairs = truth[known].astype(np.int64) * CLASSES + found[known]
        self.counts += np.bincount(pairs, minlength=CLASSES**2).reshape(CLASSES, CLASSES)

    @property
    def figures(self) -> dict[str, float]:
        """Mean IoU and pixel accuracy; empty if no pixel was counted.

        Classes that neither occur nor are found are excluded from the mean.
        """
        hits = np.diag(self.counts)
        union = self.counts.sum(0) + self.counts.sum(1) - hits
        if not union.any():
            return {}
        met = union > 0
        return {
            "mean_iou": float((hits[met] / union[met]).mean()),
            "pixel_accuracy": float(hits.sum() / self.counts.sum()),
        }
