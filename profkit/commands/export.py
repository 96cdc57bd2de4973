"""Write a run, or some of its steps, for Perfetto and Chrome, Parquet, CSV or Prometheus.

Viewers cannot load the timeline of a long run, so profkit writes only the last 20 steps by default;
--steps selects others. It prints the size before it writes anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._options import (
    add_json,
    add_run,
    add_write,
    run_or_newest,
)
from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.exporters.base import Exporter, Window


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--format",
        default="chrome",
        metavar="NAME",
        help="chrome (which Perfetto opens), parquet, csv, stacks, benchmark or "
        "prometheus (default: %(default)s)",
    )
    parser.add_argument(
        "--stacks",
        action="store_const",
        const="stacks",
        dest="format",
        help="sampled stacks as collapsed lines, for speedscope and as a flame graph; all steps "
        "by default",
    )
    parser.add_argument(
        "--steps",
        default="",
        metavar="FROM:TO",
        help="steps FROM to TO, without TO; one step; or all (default: the last 20)",
    )
    add_write(parser, "the file, or the folder of a format with several (default: the run's name)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.exporters.base import new_path, open_window
    from profkit.frame.notices import find_thinned_notice
    from profkit.plugins import EXPORTERS
    from profkit.show.json import dumps
    from profkit.text import byte_size, plural
    from profkit.trace import Trace

    exporter = EXPORTERS.load(args.format)
    wanted = args.steps or ("all" if exporter.name == "stacks" else "")
    window = open_window(Trace.open(run_or_newest(args.path, args.output)), wanted)
    refuse = getattr(exporter, "why_not", None)  # exporters of plug-ins may lack it
    if refuse is not None and (why_not := refuse(window)):
        raise UsageError(why_not)
    name = window.trace.name + (exporter.suffix or f".{exporter.name}")
    target = args.write or Path(name)
    if not getattr(exporter, "replaces", False):  # the same
        target = new_path(target)
    count = sum(window.rows[name] for name in exporter.row_bytes if name in window.rows)
    steps, rows = plural(len(window.steps), "step"), plural(count, "row")
    estimate = window.estimate(exporter)
    expected = f"{steps}, {rows}, about {byte_size(estimate)} as {exporter.title}"
    for words in (expected, *find_thinned_notice(window.trace)):
        print(f"profkit: {words}", file=sys.stderr)
    _write_whole(exporter, window, target)
    files = target.iterdir() if exporter.is_folder else [target]
    size = sum(file.stat().st_size for file in files)
    if args.json:
        made = {
            "output": str(target),
            "format": exporter.name,
            "steps": list(window.steps),
            "rows": window.rows,
            "bytes": size,
            "estimated_bytes": estimate,
        }
        print(dumps(made))
    else:
        print(f"{safe_text(str(target))}  {byte_size(size)}")
    return ExitCode.DONE


def _write_whole(exporter: Exporter, window: Window, target: Path) -> None:
    """Write under a temporary name first, so that the final name never holds a part."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        exporter.write(window, partial)
        os.rename(partial, target)
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(target))}: {error.strerror or error}; "
            "choose another place with --write"
        ) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
