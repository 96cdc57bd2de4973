"""Write a run, or some steps of it, for other tools: Perfetto, Chrome, Parquet, CSV.

A timeline of a long run is more than a viewer takes, so the last 20 steps are written unless
--steps says otherwise. How much it will be is told before anything is written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._options import add_json, run_or_newest
from profkit.errors import ExitCode, ProfkitError
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.exporters.base import Exporter, Window


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="the run's folder (default: the newest run below --traces)",
    )
    parser.add_argument(
        "--traces",
        type=Path,
        default=Path("traces"),
        metavar="FOLDER",
        help="where runs are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--format",
        default="perfetto",
        metavar="NAME",
        help="perfetto, chrome, parquet or csv (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        default="",
        metavar="FROM:TO",
        help="these steps, TO not among them; one step; or all (default: the last 20)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file, or the folder of a format that has several (default: the run's name)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.exporters.base import new_path, open_window
    from profkit.plugins import EXPORTERS
    from profkit.report.as_json import dumps
    from profkit.text import byte_size, plural
    from profkit.trace import Trace

    exporter = EXPORTERS.load(args.format)
    window = open_window(Trace.open(run_or_newest(args.path, args.traces)), args.steps)
    output = new_path(
        args.output or Path(window.trace.name + (exporter.suffix or f".{exporter.name}"))
    )
    rows, estimate = sum(window.rows.values()), window.estimate(exporter)
    print(
        f"profkit: {plural(len(window.steps), 'step')}, {plural(rows, 'row')}, about {byte_size(estimate)} as {exporter.title}",
        file=sys.stderr,
    )
    _write_whole(exporter, window, output)
    files = sorted(output.iterdir()) if exporter.is_folder else [output]
    size = sum(file.stat().st_size for file in files)
    made = {
        "output": str(output),
        "format": exporter.name,
        "steps": list(window.steps),
        "rows": window.rows,
        "bytes": size,
        "estimated_bytes": estimate,
    }
    print(dumps(made) if args.json else f"{safe_text(str(output))}  {byte_size(size)}")
    return ExitCode.DONE


def _write_whole(exporter: Exporter, window: Window, output: Path) -> None:
    """Under another name first: what has the final name is whole, also where the export is killed."""
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        exporter.write(window, partial)
        os.rename(partial, output)
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(output))}: {error.strerror or error}; choose another place with --output"
        ) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
