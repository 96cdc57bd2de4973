"""List the reference systems: frameworks, data, published settings."""

from __future__ import annotations

import argparse
import sys

from profkit.commands._options import add_json
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.plugins import WORKLOADS
    from profkit.report.as_json import dumps
    from profkit.text import safe_text, table

    loaded, broken = WORKLOADS.load_all()
    if args.json:
        rows = [
            {
                "name": name,
                "title": workload.title,
                "frameworks": list(workload.frameworks),
                "data": workload.data,
                "published": dict(workload.published),
            }
            for name, workload in loaded.items()
        ]
        print(dumps(rows))
    else:
        header = ["name", "frameworks", "data", "published settings"]
        print(
            table(
                [
                    header,
                    *(
                        [name, ", ".join(each.frameworks), each.data, _settings(each.published)]
                        for name, each in loaded.items()
                    ),
                ]
            )
        )
    for name, error in broken.items():
        print(
            f"profkit: workload '{safe_text(name)}' cannot be loaded: {safe_text(str(error))}",
            file=sys.stderr,
        )
    return ExitCode.DONE


def _settings(published: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in published.items())
