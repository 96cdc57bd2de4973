"""Any frozen view as JSON's values: the twin of a screen that needs no more than the names of the view's fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np


def of(view: Any) -> Any:
    """Dataclasses become objects, arrays and tuples lists, keys words; the rest stays what it is."""
    if isinstance(view, Enum):
        return view.value
    if dataclasses.is_dataclass(view) and not isinstance(view, type):
        return {
            field.name: of(getattr(view, field.name))
            for field in dataclasses.fields(view)
            if not field.name.startswith("_")
        }
    if isinstance(view, Mapping):
        return {_key(key): of(value) for key, value in view.items()}
    if isinstance(view, np.ndarray | np.generic):
        return view.tolist()
    if isinstance(view, tuple | list | set | frozenset):
        return [of(value) for value in view]
    return str(view) if isinstance(view, Path) else view


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)
