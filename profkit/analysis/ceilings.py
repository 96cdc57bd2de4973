"""Ceilings of a machine, as `profkit ceilings` measures them, for kernels and collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Links:
    """Bus bandwidth of an all-reduce alone between so many ranks, by ascending message size."""

    backend: str
    ranks: int
    sizes: tuple[int, ...]
    bus_bytes_per_s: tuple[float, ...]

    def at(self, size: float) -> float:
        """Return the bus bandwidth at a size, interpolated on logarithms; NaN if unmeasured."""
        if not self.sizes or size <= 0:
            return math.nan
        rate = np.interp(math.log(size), np.log(self.sizes), np.log(self.bus_bytes_per_s))
        return float(np.exp(rate))

    def mean_at(self, sizes: Iterable[float], counts: Iterable[int]) -> float | None:
        """Return the bus bandwidth of so many messages of these sizes, one after the other."""
        seconds, total = 0.0, 0.0
        for size, count in zip(sizes, counts, strict=True):
            total += float(size * count)
            if size > 0:
                seconds += float(count * size / self.at(size))
        return total / seconds if seconds > 0 else None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Links:
        sizes = tuple(map(int, content["sizes"]))
        rates = tuple(map(float, content["bus_bytes_per_s"]))
        if len(sizes) != len(rates) or min((*sizes, *rates), default=1) <= 0:
            raise ValueError("links without sizes")
        return cls(str(content["backend"]), int(content["ranks"]), sizes, rates)


@dataclass(frozen=True)
class Ceilings:
    """Rates of one machine; a rate that could not be measured is null or missing."""

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
        for links in self.links:
            if (links.backend, links.ranks) == (backend, ranks):
                return links
        return None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Ceilings:
        """Read a file's content; raise `ValueError` or `TypeError` if it is no such file."""
        links = tuple(map(Links.from_json, content.get("links", ())))
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        return cls(**{**known, "links": links})
