"""Views as JSON values, with the names of their fields as keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.bandwidth import LinkUse


def of(view: Any) -> Any:
    """Convert dataclasses to objects, arrays and tuples to lists, and keys to strings."""
    if isinstance(view, Enum):
        return view.value
    if dataclasses.is_dataclass(view) and not isinstance(view, type):
        public = [field.name for field in dataclasses.fields(view) if field.name[0] != "_"]
        return {name: of(getattr(view, name)) for name in public}
    if isinstance(view, Mapping):
        keys = [key.value if isinstance(key, Enum) else key for key in view]
        return dict(zip(map(str, keys), map(of, view.values()), strict=True))
    if isinstance(view, np.ndarray | np.generic):
        return view.tolist()
    if isinstance(view, tuple | list | set | frozenset):
        return [of(value) for value in view]
    return str(view) if isinstance(view, Path) else view


def links(used: Iterable[LinkUse]) -> list[dict[str, Any]]:
    """Return what each communicator moved, with its share of the link's ceiling."""
    rows = []
    for use in used:
        rows.append(dataclasses.asdict(use) | {"share_of_ceiling": use.share_of_ceiling})
    return rows
