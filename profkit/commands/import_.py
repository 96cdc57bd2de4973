"""Turn traces and logs of other tools into runs.

profkit reads files of the PyTorch profiler, Nsight Systems and NCCL, PyTorch's memory snapshots,
and training logs. It recognises the format by content. Files of one job's ranks, or a folder of
them, make one run; each memory snapshot is a run. Values that a file does not contain are null.
profkit counts and shows what it drops or repairs. It drops environment variables, command lines,
user names and, without --keep-private, host names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from profkit.address import to_path
from profkit.commands._options import add_json, add_output, print_broken, whole
from profkit.errors import ExitCode, UnreadableError
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.importers.base import Imported, Importer, Target
    from profkit.importers.reading.plan import ImportPlan


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=to_path, nargs="+", metavar="FILE", help="files, or folders of them"
    )
    add_output(parser)
    parser.add_argument(
        "--format",
        default="",
        metavar="NAME",
        help="read the files as this format instead of recognising it",
    )
    parser.add_argument("--name", default="", help="name of the run (default: the first file's)")
    parser.add_argument(
        "--samples-per-step",
        type=whole(1),
        metavar="N",
        help="samples per step and rank, if the file does not say",
    )
    parser.add_argument(
        "--keep-private",
        action="store_true",
        help="keep the name of the host",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.importers.base import ImportOptions, Target
    from profkit.importers.reading.plan import plan_import
    from profkit.plugins import IMPORTERS
    from profkit.report import imported
    from profkit.show.json import dumps, of

    importers, broken = IMPORTERS.load_all()
    print_broken("importer", broken)
    plan = plan_import(args.files, importers, args.format)
    _print_unknown(plan)
    target = Target(args.output, ImportOptions(args.name, args.samples_per_step, args.keep_private))
    runs: list[Imported] = []
    problems = list(plan.problems)
    try:
        _import_all(plan, importers, target, runs, problems)
    finally:  # what was written exists, whatever came after it
        if args.json and (runs or not problems):
            print(dumps(of(runs)))
        elif runs:
            print("\n\n".join(map(imported.as_text, runs)))
        for problem in problems:
            print(f"profkit: {problem}", file=sys.stderr)
    return ExitCode.UNREADABLE if problems else ExitCode.DONE


def _print_unknown(plan: ImportPlan) -> None:
    """Name the files in folders that no importer reads."""
    for path in plan.unknown:
        print(f"profkit: {safe_text(str(path))}: unknown format, skipped", file=sys.stderr)


def _import_all(
    plan: ImportPlan,
    importers: Mapping[str, Importer],
    target: Target,
    runs: list[Imported],
    problems: list[UnreadableError],
) -> None:
    """Append the runs that are written, and the reasons why others are not."""
    from profkit.importers.reading.plan import runs_of

    for name, sources in plan.sources.items():
        for own in runs_of(importers[name], sources):
            try:
                runs.extend(importers[name].read(own, target))
            except UnreadableError as error:
                problems.append(error)
