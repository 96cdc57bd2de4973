"""Turn other tools' traces and logs into runs: PyTorch profiler, Nsight Systems, NCCL, training logs.

The format is told by content. Files of one job's ranks, or a folder of them, make one run. What a
file does not know is null; what is dropped or repaired is counted and shown. Environment
variables, command lines and user names in the files are dropped unless --keep-private is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from profkit.commands._options import add_json, add_output, whole
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
        help="read the files as this format, whatever they look like",
    )
    parser.add_argument("--name", default="", help="the run's name (default: the first file's)")
    parser.add_argument(
        "--samples-per-step",
        type=whole(1),
        metavar="N",
        help="samples that a rank trains on in a step, where the file does not say",
    )
    parser.add_argument(
        "--keep-private",
        action="store_true",
        help="keep command lines, user names and environment variables",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.importers.base import ImportOptions, Target, plan_import
    from profkit.plugins import IMPORTERS
    from profkit.report import imported as screens
    from profkit.report.as_json import dumps
    from profkit.text import safe_text

    importers, broken = IMPORTERS.load_all()
    for name, error in broken.items():
        print(
            f"profkit: importer '{safe_text(name)}' cannot be loaded: {safe_text(str(error))}",
            file=sys.stderr,
        )
    plan = plan_import(args.files, importers, args.format)
    for path in plan.unknown:
        print(f"profkit: {safe_text(str(path))}: of no known format, left out", file=sys.stderr)
    target = Target(args.output, ImportOptions(args.name, args.samples_per_step, args.keep_private))
    runs = [
        made
        for name, sources in plan.sources.items()
        for made in importers[name].read(sources, target)
    ]
    print(
        dumps([screens.as_json(made) for made in runs])
        if args.json
        else "\n\n".join(map(screens.as_text, runs))
    )
    return ExitCode.DONE
