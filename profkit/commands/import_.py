"""Turn traces and logs of other tools into runs.

profkit reads files of the PyTorch profiler, Nsight Systems, NCCL and StragglerAnalysis, and
training logs. It recognises the format by content. Files of one job's ranks, or a folder of them,
make one run. Values that a file does not contain are null. profkit counts and shows what it drops
or repairs. It drops environment variables, command lines, user names and, without --keep-private,
host names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from profkit.commands._options import add_json, add_output, print_broken, whole
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="files, or folders of them"
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
    from profkit.importers.base import ImportOptions, Target, plan_import
    from profkit.plugins import IMPORTERS
    from profkit.report import imported
    from profkit.report.as_json import dumps
    from profkit.text import safe_text

    importers, broken = IMPORTERS.load_all()
    print_broken("importer", broken)
    plan = plan_import(args.files, importers, args.format)
    read_too: set[Path] = set()
    for name, sources in plan.sources.items():
        if hasattr(importers[name], "companions"):
            for source in sources:
                read_too |= importers[name].companions(source)
    for path in plan.unknown:
        if path in read_too:
            continue
        print(f"profkit: {safe_text(str(path))}: unknown format, skipped", file=sys.stderr)
    target = Target(args.output, ImportOptions(args.name, args.samples_per_step, args.keep_private))
    runs = []
    for name, sources in plan.sources.items():
        runs.extend(importers[name].read(sources, target))
    if args.json:
        print(dumps(list(map(imported.as_json, runs))))
    else:
        print("\n\n".join(map(imported.as_text, runs)))
    return ExitCode.DONE
