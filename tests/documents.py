"""What the verbs print of a view, as text and as JSON values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from profkit.analysis.overview import Overview
from profkit.explain.explained import Explained
from profkit.explain.scaling import ScalingRow
from profkit.report.ledger_document import explained
from profkit.report.overview_document import overview
from profkit.report.scaling_document import scaling
from profkit.show import json, text


def report_text(view: Overview) -> str:
    return text.document(overview(view))


def report_json(view: Overview) -> dict[str, Any]:
    return json.document(overview(view))


def gap_json(view: Explained) -> dict[str, Any]:
    return json.document(explained(view))


def scaling_json(rows: Sequence[ScalingRow]) -> dict[str, Any]:
    return json.document(scaling(rows))


def scaling_text(rows: Sequence[ScalingRow]) -> str:
    return text.document(scaling(rows))


def drawings(page: str) -> Iterator[str]:
    """Yield the outermost drawings of a page; a drawing may hold others."""
    depth = begin = 0
    for found in re.finditer(r"<(/?)svg\b", page):
        if found[1]:
            depth -= 1
        elif depth == 0:
            begin, depth = found.start(), 1
        else:
            depth += 1
        if depth == 0:
            yield page[begin : found.end() + 1]
