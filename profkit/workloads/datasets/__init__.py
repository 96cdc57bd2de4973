"""Readers and generators of the data sets: one reader, and one generated set, per layout."""

from __future__ import annotations

from pathlib import Path


def generate_default(layout: str) -> Path:
    """Return the folder of the generated set in this layout, of its default size."""
    from profkit.workloads.datasets.coco_scenes import GeneratedScenes
    from profkit.workloads.datasets.generated import generate
    from profkit.workloads.datasets.imagenet import GeneratedSet
    from profkit.workloads.datasets.motions import GeneratedClips
    from profkit.workloads.datasets.signs import GeneratedSigns
    from profkit.workloads.datasets.streets import GeneratedStreets

    kinds = (GeneratedScenes, GeneratedSet, GeneratedClips, GeneratedSigns, GeneratedStreets)
    (kind,) = (kind for kind in kinds if kind.layout == layout)
    return generate(kind())
