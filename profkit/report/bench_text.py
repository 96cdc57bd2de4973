"""A matrix as plain text, Markdown, CSV and JSON rows."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from profkit.bench.effects import Effect, Effects, Interaction
from profkit.bench.read import Benched, rows
from profkit.exporters.csv import cell as csv_cell
from profkit.report.as_markdown import plain
from profkit.report.as_text import WIDTH
from profkit.report.bench_words import Section, sections
from profkit.report.ledger_json import estimate
from profkit.text import safe_text, table


def as_text(view: Benched) -> str:
    return "\n\n".join("\n".join(_text_lines(section)) for section in sections(view))


def _text_lines(section: Section) -> Iterator[str]:
    yield safe_text(section.title)
    if section.header:
        cells = [[safe_text(cell) for cell in row] for row in (section.header, *section.rows)]
        yield table(cells, right=section.right)
    for line in section.lines:
        yield "\n".join(
            textwrap.wrap(
                safe_text(line),
                WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        )


def as_markdown(view: Benched) -> str:
    """The same sections; the first table is in the shape of the reports' own."""
    return "\n".join(line for section in sections(view) for line in _markdown_lines(section))


def _markdown_lines(section: Section) -> Iterator[str]:
    yield from (f"## {plain(section.title)}", "")
    if section.header:
        for row in (
            section.header,
            tuple(
                ":---:" if column in section.right else ":---"
                for column in range(len(section.header))
            ),
            *section.rows,
        ):
            yield (
                "|"
                + "|".join(f" {cell if cell.strip(':-') == '' else plain(cell)} " for cell in row)
                + "|"
            )
        yield ""
    yield from (f"- {plain(line)}" for line in section.lines)
    if section.lines:
        yield ""


def as_csv(view: Benched) -> str:
    """One row a cell; empty where nothing was measured."""
    found = rows(view)
    names = list(dict.fromkeys(name for row in found for name in row))
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([csv_cell(row.get(name)) for name in names] for row in found)
    return file.getvalue()


def as_json_rows(view: Benched) -> str:
    """One row a cell and line, with the fields of the reports' own database record."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows(view))


def as_json(view: Benched) -> dict[str, Any]:
    """What `profkit bench --json` prints; times are ns per sample per GPU."""
    return {
        "workload": view.workload,
        "framework": view.framework or None,
        "cells": rows(view),
        "effects": _effects(view.effects),
        "interactions": [_interaction(each) for each in view.effects.interactions],
        "published": [
            {
                "framework": table.framework,
                "device": table.device,
                "source": table.source,
                "cells": [
                    {
                        **_setting(cell.setting),
                        "throughput": cell.throughput.value,
                        "unit": cell.unit,
                        "statistic": cell.statistic,
                        "time_to_train_s": cell.time_to_train_s,
                    }
                    for cell in table.cells
                ],
                "effects": _effects(table.effects),
            }
            for table in view.published
        ],
        "contradictions": [
            {"kind": each.kind, "words": each.words, "source": each.cells[0].source}
            for each in view.contradictions
        ],
        "notes": list(view.notes),
    }


def _effects(found: Effects) -> list[dict[str, Any]]:
    return [_effect(effect) for effect in found.effects]


def _effect(effect: Effect) -> dict[str, Any]:
    base, target = effect.levels
    return {
        "axis": effect.axis,
        "from": base,
        "to": target,
        "at": _setting(effect.base.setting),
        "base_ns": estimate(effect.base.total),
        "target_ns": estimate(effect.target.total),
        "difference_ns": estimate(effect.delta),
        "difference_share": estimate(effect.share),
        "beyond_the_noise": effect.sure if effect.delta.judged else None,
    }


def _interaction(each: Interaction) -> dict[str, Any]:
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


def _setting(setting: Any) -> dict[str, Any]:
    return {
        "gpus": setting.gpus,
        "precision": setting.precision,
        "batch_size": setting.batch_size,
        "loader": setting.loader or None,
    }
