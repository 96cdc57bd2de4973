"""List the reference systems: frameworks, data, published settings, differences from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from profkit.commands._options import add_json, print_broken
from profkit.errors import ExitCode

if TYPE_CHECKING:
    from profkit.workloads.base import Workload

WIDTH = 80
"""Columns of the list, which is read as a page of text."""

LABEL_WIDTH = 18


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.plugins import WORKLOADS
    from profkit.show.json import dumps

    loaded, broken = WORKLOADS.load_all()
    figures = []
    pages = []
    for name, workload in loaded.items():
        row = {
            "name": name,
            "title": workload.title,
            "frameworks": list(workload.frameworks),
            "data": workload.data,
            "figures": list(workload.figures),
            "published": dict(workload.published),
            "departures": list(workload.departures),
        }
        figures.append(row)
        pages.append(describe(name, workload))
    if args.json:
        print(dumps(figures))
    else:
        print("\n\n".join(pages))
    print_broken("workload", broken)
    return ExitCode.DONE


def describe(name: str, workload: Workload) -> str:
    """Return a system's page: a line for each setting, folded below its own column."""
    from profkit.text import fold

    rows = [
        ("frameworks", ", ".join(workload.frameworks)),
        ("data", workload.data),
        ("quality figures", ", ".join(workload.figures) or "none"),
    ]
    lines = [fold(f"{name}: {workload.title}", "", width=WIDTH)]
    for label, value in rows:
        lines.append(fold(value, f"  {label:{LABEL_WIDTH}}", " " * (LABEL_WIDTH + 2), WIDTH))
    lines.append("  published settings")
    for label, value in workload.published.items():
        words = label.replace("_", " ")
        start = f"    {words:{LABEL_WIDTH - 2}}"
        lines.append(fold(str(value), start, " " * (LABEL_WIDTH + 2), WIDTH))
    if workload.departures:
        lines.append("  differences from the published runs")
        lines += [fold(text, "    - ", "      ", WIDTH) for text in workload.departures]
    return "\n".join(lines)
