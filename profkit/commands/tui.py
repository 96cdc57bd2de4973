"""Show runs in the terminal: what is slow in a run, why it is slower than another.

TRACES is a folder of runs, or one run. Keys: Enter opens, 1 to 9 change the screen, w asks what
if, Space marks runs and d compares them, / filters, ? shows all keys of a screen, q quits. Without
a terminal, profkit prints the text report. --json prints a screen's figures and --screenshot writes
its picture; both work without a terminal.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.address import to_path
from profkit.commands._options import DEFAULT_RUNS, add_json
from profkit.errors import ExitCode, ProfkitError, UsageError

if TYPE_CHECKING:
    from profkit.tui.app import ProfkitApp

THEMES = ("dark", "light", "ansi", "colour-blind")
SMALLEST, LARGEST = (20, 6), (500, 300)
DEFAULT_SIZE = (120, 40)
SLOW_LINE_FPS = "15"
"""Frames per second over SSH."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=to_path,
        nargs="?",
        default=Path("traces"),
        metavar="TRACES",
        help="a folder of runs, or a run (default: %(default)s)",
    )
    parser.add_argument(
        "--follow", action="store_true", help="update while the run is still being written"
    )
    parser.add_argument(
        "--base",
        type=to_path,
        action="append",
        default=[],
        metavar="RUN",
        help="run to compare with on the screen explain; may be repeated",
    )
    parser.add_argument(
        "--screen",
        default="",
        metavar="NAME",
        help="first screen, such as overview or kernels",
    )
    parser.add_argument(
        "--screenshot",
        type=Path,
        metavar="FILE.svg",
        help="write a picture of the screen and exit; needs no terminal",
    )
    parser.add_argument(
        "--size",
        type=cells,
        default=DEFAULT_SIZE,
        metavar="COLSxROWS",
        help="size of that picture (default: 120x40)",
    )
    parser.add_argument(
        "--theme",
        choices=THEMES,
        default="dark",
        metavar="NAME",
        help=f"one of {', '.join(THEMES)} (default: %(default)s)",
    )
    parser.add_argument("--ascii", action="store_true", help="draw with plain ASCII only")
    add_json(parser)


def cells(word: str) -> tuple[int, int]:
    """Convert the size of a terminal, such as `120x40`."""
    columns, _, rows = word.lower().partition("x")
    if not (columns.isdigit() and rows.isdigit()):
        raise argparse.ArgumentTypeError(f"'{word}' is not a size such as 120x40")
    size = (int(columns), int(rows))
    for least, value, most in zip(SMALLEST, size, LARGEST, strict=True):
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{word} is out of range: 20x6 to 500x300")
    return size


def run(args: argparse.Namespace) -> int:
    from profkit.trace.folders import find_run

    args.path = find_run(args.path, DEFAULT_RUNS)
    args.base = [find_run(base, DEFAULT_RUNS) for base in args.base]
    is_run = _check_path(args.path)
    if args.json:
        return _print_json(args, is_run=is_run)
    if args.screenshot is not None:
        from profkit.commands._shapes import write_file
        from profkit.tui import headless

        write_file(args.screenshot, headless.take_picture(_app(args), args.size))
        return ExitCode.DONE
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not has_terminal or os.environ.get("TERM") == "dumb":
        return _print_text(args.path, is_run=is_run)
    if os.environ.get("SSH_CONNECTION"):
        os.environ.setdefault("TEXTUAL_FPS", SLOW_LINE_FPS)
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    app = _app(args)
    gc.freeze()  # imports stay: collecting through them takes longer than a key press may
    app.run()
    return int(app.return_code or ExitCode.DONE)


def _check_path(path: Path) -> bool:
    """Return True for a run, False for a folder that may hold some; anything else is an error."""
    from profkit.trace.reader import check_folder, find_runs

    try:
        check_folder(path)
    except ProfkitError:
        if not path.is_dir() or (not find_runs(path) and any(path.glob("r0*"))):
            raise
        return False
    return True


def _print_json(args: argparse.Namespace, *, is_run: bool) -> int:
    from profkit.show.json import dumps
    from profkit.tui import headless

    headless.check_screen(args.screen)
    if is_run:
        figures = headless.twin(args.path, args.screen or headless.FIRST_SCREEN, args.base)
    elif args.screen:
        raise UsageError(
            f"--screen {args.screen} shows one run, and {args.path} is a folder of runs; "
            "name one of them"
        )
    else:
        figures = headless.runs_twin(args.path)
    print(dumps(figures))
    return ExitCode.DONE


def _print_text(path: Path, *, is_run: bool) -> int:
    """Print a report of the run, or the list of runs."""
    from profkit.show import text

    words = "no terminal here, so this is the text report (see also --json and --screenshot)"
    print(f"profkit: {words}", file=sys.stderr)
    if is_run:
        from profkit.analysis.kept_ceilings import load_ceilings
        from profkit.analysis.overview import build_overview
        from profkit.report.overview_document import overview
        from profkit.trace import Trace

        trace = Trace.open(path)
        view = build_overview(trace, load_ceilings(trace.manifest.environment))
        print(text.document(overview(view)))
    else:
        from profkit.report.runs_document import runs
        from profkit.tui.headless import read_runs

        print(text.document(runs(read_runs(path), path)))
    return ExitCode.DONE


def _app(args: argparse.Namespace) -> ProfkitApp:
    from profkit.tui import headless
    from profkit.tui.app import ProfkitApp

    headless.check_screen(args.screen)
    return ProfkitApp(
        args.path,
        bases=args.base,
        screen=args.screen,
        follow=args.follow,
        theme=args.theme,
        plain=args.ascii,
    )
