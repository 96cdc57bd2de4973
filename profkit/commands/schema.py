"""Show the trace contract: every table and column, with unit and meaning.

A run is a folder with `run.json`, and for each rank a folder with one Arrow IPC stream per table.
"""

from __future__ import annotations

import argparse

from profkit.commands._options import add_json
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--markdown", action="store_true", help="print the content of docs/schema.md")


def run(args: argparse.Namespace) -> int:
    from profkit.report import contract

    if args.json:
        print(contract.as_json())
    elif args.markdown:
        print(contract.as_markdown(), end="")
    else:
        print(contract.as_text(), end="")
    return ExitCode.DONE
