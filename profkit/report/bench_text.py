"""A matrix as plain text, Markdown, CSV and JSON rows."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from profkit.bench.effects import Effect, Interaction
from profkit.bench.read import Benched, Table, rows
from profkit.exporters.csv import cell as csv_cell
from profkit.report.as_markdown import grid_markdown, plain
from profkit.report.bench_words import sections
from profkit.report.ledger_json import estimate
from profkit.text import fold, safe_text, table


def as_text(view: Benched) -> str:
    """Return each section with its notes below the table that they explain.

    No column is shortened, unlike in other reports: a setting must be whole to be found again.
    """
    blocks = []
    for section in sections(view):
        lines = [safe_text(section.title)]
        if section.grid:
            cells = [list(map(safe_text, row)) for row in (section.grid.header, *section.grid.rows)]
            lines.append(table(cells, right=section.grid.right))
        lines.extend(map(fold, section.notes))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def as_markdown(view: Benched) -> str:
    """Return the same sections; the first table has the layout of published reports."""
    blocks = []
    for section in sections(view):
        blocks.append(f"## {plain(section.title)}")
        if section.grid:
            blocks.append(grid_markdown(section.grid))
        if section.notes:
            blocks.append("\n".join(f"- {plain(note)}" for note in section.notes))
    return "\n\n".join(blocks) + "\n"


def as_csv(view: Benched) -> str:
    """Return one row per cell; a field is empty if it was not measured."""
    found = rows(view)
    names: dict[str, None] = {}
    for row in found:
        names.update(dict.fromkeys(row))
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in found:
        writer.writerow([csv_cell(row.get(name)) for name in names])
    return file.getvalue()


def as_json_rows(view: Benched) -> str:
    """Return one JSON row per cell and line, with the fields of published database records."""
    lines = []
    for row in rows(view):
        lines.append(json.dumps(row, allow_nan=False) + "\n")
    return "".join(lines)


def as_json(view: Benched) -> dict[str, Any]:
    """Return what `profkit bench --json` prints; times are ns per sample and GPU."""
    return {
        "workload": view.workload,
        "framework": ", ".join(view.frameworks) or None,
        "cells": rows(view),
        "effects": list(map(effect_json, view.effects.effects)),
        "interactions": list(map(interaction_json, view.effects.interactions)),
        "published": list(map(published_json, view.published)),
        "notes": list(view.notes),
    }


def published_json(found: Table) -> dict[str, Any]:
    cells = []
    for cell in found.cells:
        figures = {
            "throughput": cell.throughput.value,
            "unit": cell.unit,
            "statistic": cell.statistic,
            "time_to_train_s": cell.time_to_train_s,
        }
        cells.append({**setting_json(cell.setting), **figures})
    return {
        "framework": found.framework,
        "device": found.device,
        "source": found.source,
        "cells": cells,
        "effects": list(map(effect_json, found.effects.effects)),
    }


def effect_json(effect: Effect) -> dict[str, Any]:
    base, target = effect.levels
    return {
        "axis": effect.axis,
        "from": base,
        "to": target,
        "at": setting_json(effect.base.setting),
        "base_ns": estimate(effect.base.total),
        "target_ns": estimate(effect.target.total),
        "difference_ns": estimate(effect.delta),
        "difference_share": estimate(effect.share),
        "beyond_the_noise": effect.sure if effect.delta.judged else None,
    }


def interaction_json(each: Interaction) -> dict[str, Any]:
    return {
        "axis": each.first.axis,
        "depends_on": each.other_axis,
        "at": list(each.other_levels),
        "first_difference_ns": estimate(each.first.delta),
        "second_difference_ns": estimate(each.second.delta),
        "interaction_ns": estimate(each.delta),
        "beyond_the_noise": each.sure if each.delta.judged else None,
        "reason": each.reason or None,
        "reason_ns": each.reason_ns,
    }


def setting_json(setting: Any) -> dict[str, Any]:
    return {
        "gpus": setting.gpus,
        "precision": setting.precision,
        "batch_size": setting.batch_size,
        "loader": setting.loader or None,
        "framework": setting.framework or None,
    }
