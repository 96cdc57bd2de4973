"""List the reference systems: frameworks, data, published settings."""

from __future__ import annotations

import argparse

from profkit.commands._options import add_json, print_broken
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.plugins import WORKLOADS
    from profkit.report.as_json import dumps
    from profkit.text import fold

    loaded, broken = WORKLOADS.load_all()
    figures = []
    lines = []
    for name, workload in loaded.items():
        row = {
            "name": name,
            "title": workload.title,
            "frameworks": list(workload.frameworks),
            "data": workload.data,
            "published": dict(workload.published),
        }
        figures.append(row)
        published = ", ".join(f"{what} {value}" for what, value in workload.published.items())
        lines.append(fold(f"{name} ({', '.join(workload.frameworks)}): {workload.data}", ""))
        lines.append(fold(f"published settings: {published}"))
    if args.json:
        print(dumps(figures))
    else:
        print("\n".join(lines))
    print_broken("workload", broken)
    return ExitCode.DONE
