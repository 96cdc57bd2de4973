"""What a machine can do at best, as `profkit ceilings` has measured it: the scale that kernels and collectives are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Links:
    """All-reduce alone between so many ranks: bus bandwidth by message size, sizes ascending."""

    backend: str
    ranks: int
    sizes: tuple[int, ...]
    bus_bytes_per_s: tuple[float, ...]

    def at(self, size: float) -> float:
        """The bus bandwidth at a size, between the measured ones by their logarithms; NaN where nothing was measured."""
        if not self.sizes or size <= 0:
            return math.nan
        return float(
            np.exp(np.interp(math.log(size), np.log(self.sizes), np.log(self.bus_bytes_per_s)))
        )


@dataclass(frozen=True)
class Ceilings:
    """Rates of one machine; what could not be measured is null or missing."""

    device: str = ""
    library: str = ""
    matrix_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """By precision: fp32, tf32, fp16, bf16, fp64."""
    copy_bytes_per_s: float | None = None
    """Bytes read and written by a copy on the device."""
    to_device_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    """`pinned` and `pageable`."""
    jpeg_images_per_s: float | None = None
    """Decoded by one core: images of 500 x 375."""
    disk_read_bytes_per_s: float | None = None
    links: tuple[Links, ...] = ()

    def links_of(self, backend: str, ranks: int) -> Links | None:
        return next(
            (links for links in self.links if (links.backend, links.ranks) == (backend, ranks)),
            None,
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Ceilings:
        """What a file holds; a `ValueError` or `TypeError` for what is no such file."""
        links = tuple(
            Links(
                str(each["backend"]),
                int(each["ranks"]),
                tuple(map(int, each["sizes"])),
                tuple(map(float, each["bus_bytes_per_s"])),
            )
            for each in content.get("links", ())
        )
        if any(
            len(each.sizes) != len(each.bus_bytes_per_s)
            or min((*each.sizes, *each.bus_bytes_per_s), default=1) <= 0
            for each in links
        ):
            raise ValueError("links without sizes")
        known = {
            name: content[name]
            for name in cls.__dataclass_fields__
            if name in content and name != "links"
        }
        return cls(**known, links=links)
