"""A document as JSON: its numbers by the keys of sections and columns."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from profkit.frame.estimate import Estimate
from profkit.show.document import Document, Fact, Quantity, Section, Table


def dumps(content: Any) -> str:
    """Return JSON as profkit prints it.

    Keys keep their order, and what is unknown or not finite is null. It is plain ASCII, so that no
    name in it can steer a terminal or fail to be encoded.
    """
    return json.dumps(_finite(content), indent=2, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def document(content: Document, scale: float = 1.0) -> dict[str, Any]:
    """Return all that a document contains."""
    found = {"headline": content.headline or None, **of(content.data)}
    for fact in content.facts:
        if fact.key:
            found[fact.key] = of(fact)
    for section in content.sections:
        if section.key:
            found[section.key] = of(section)
    return found


@functools.singledispatch
def of(value: Any, scale: float = 1.0) -> Any:
    """Return a value of a document, or of what it is about, as JSON values.

    Dataclasses become objects with the names of their fields, arrays and tuples lists, and keys
    strings. Numbers are multiplied by `scale`; one that is not finite is null.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    public = [field.name for field in dataclasses.fields(value) if field.name[0] != "_"]
    return {name: of(getattr(value, name), scale) for name in public}


@of.register(bool)
@of.register(str)
def _as_it_is(value: Any, scale: float = 1.0) -> Any:
    return value


@of.register(int)
@of.register(float)
def _number(value: float, scale: float = 1.0) -> float | None:
    if not math.isfinite(value):
        return None
    if scale != 1.0:
        value *= scale
    return value


@of.register(Enum)
def _enum(value: Enum, scale: float = 1.0) -> Any:
    return value.value


@of.register(Path)
def _path(value: Path, scale: float = 1.0) -> str:
    return str(value)


@of.register(np.ndarray)
@of.register(np.generic)
def _array(value: Any, scale: float = 1.0) -> Any:
    return of(value.tolist(), scale)


@of.register(list)
@of.register(tuple)
@of.register(set)
@of.register(frozenset)
def _items(value: Any, scale: float = 1.0) -> Any:
    if hasattr(value, "_asdict"):
        return of(value._asdict(), scale)
    return [of(each, scale) for each in value]


@of.register(Mapping)
def _mapping(value: Mapping[Any, Any], scale: float = 1.0) -> dict[str, Any]:
    found = {}
    for key, each in value.items():
        found[str(key.value if isinstance(key, Enum) else key)] = of(each, scale)
    return found


@of.register(Estimate)
def _estimate(value: Estimate, scale: float = 1.0) -> dict[str, Any]:
    return {end: of(getattr(value, end), scale) for end in ("value", "low", "high")}


@of.register(Quantity)
@of.register(Fact)
def _quantity(value: Fact | Quantity, scale: float = 1.0) -> Any:
    return of(value.value, value.unit.scale)


@of.register(Table)
def _table(value: Table, scale: float = 1.0) -> Any:
    rows = [_row(row, value) for row in value.rows]
    return rows[0] if value.single else rows


@of.register(Section)
def _section(section: Section, scale: float = 1.0) -> Any:
    if section.missing:
        return None
    if not isinstance(section.table, Table):
        return of(section.facts)
    rows = of(section.table)
    if section.facts is None:
        return rows
    return of(section.facts) | {"rows": rows}


def _row(row: Any, table: Table) -> dict[str, Any]:
    found = {}
    for column in table.columns:
        if column.key:
            value = of(column.get(row), column.unit.scale)
            found[column.key] = None if value == "" else value
    if table.inside is not None and (inside := table.inside(row)):
        found["rows"] = [_row(inner, table) for inner in inside]
    return found


of.register(Document, document)
