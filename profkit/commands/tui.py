"""See why, in three key presses: the runs of a folder, what is slow in one, why one is slower than another.

TRACES is a folder of runs, or one run. Keys: Enter opens, 1 to 9 change the screen, Space marks runs and
d compares them, / filters, ? shows all keys of a screen, q leaves. Without a terminal the text report is printed.
With --json a screen's figures are printed and with --screenshot its picture is written, and no terminal is needed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._options import add_json
from profkit.errors import ExitCode, ProfkitError, UsageError

if TYPE_CHECKING:
    from profkit.tui.app import ProfkitApp

THEMES = ("dark", "light", "ansi", "colour-blind")
SMALLEST, LARGEST = (20, 6), (500, 300)
DEFAULT_SIZE = (120, 40)
SLOW_LINE_FPS = "15"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("traces"),
        metavar="TRACES",
        help="a folder of runs, or a run (default: %(default)s)",
    )
    parser.add_argument(
        "--follow", action="store_true", help="keep up with a run that is still being written"
    )
    parser.add_argument(
        "--base",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="a run to compare with, for the screen explain; may be repeated",
    )
    parser.add_argument(
        "--screen",
        default="",
        metavar="NAME",
        help="the screen to begin with, as in overview or kernels",
    )
    parser.add_argument(
        "--screenshot",
        type=Path,
        metavar="FILE.svg",
        help="write a picture of the screen and leave; needs no terminal",
    )
    parser.add_argument(
        "--size",
        type=cells,
        default=DEFAULT_SIZE,
        metavar="COLSxROWS",
        help="the size of that picture (default: 120x40)",
    )
    parser.add_argument(
        "--theme",
        choices=THEMES,
        default="dark",
        metavar="NAME",
        help=f"one of {', '.join(THEMES)} (default: %(default)s)",
    )
    parser.add_argument("--ascii", action="store_true", help="draw with plain ASCII alone")
    add_json(parser)


def cells(word: str) -> tuple[int, int]:
    """A converter for a terminal's size, as in `120x40`."""
    columns, _, rows = word.lower().partition("x")
    if not (columns.isdigit() and rows.isdigit()):
        raise argparse.ArgumentTypeError(f"'{word}' is no size such as 120x40")
    size = (int(columns), int(rows))
    if not all(
        least <= value <= most for least, value, most in zip(SMALLEST, size, LARGEST, strict=True)
    ):
        raise argparse.ArgumentTypeError(f"{word} is out of range: 20x6 to 500x300")
    return size


def run(args: argparse.Namespace) -> int:
    is_run = _check_path(args.path)
    if args.json:
        return _print_json(args, is_run=is_run)
    if args.screenshot is not None:
        return _take_screenshot(args)
    if not _has_terminal():
        return _print_text(args.path, is_run=is_run)
    return _show(args)


def _check_path(path: Path) -> bool:
    """Whether it is a run; neither a run nor a folder that may hold some is an error."""
    from profkit.trace.reader import check_folder, find_runs

    try:
        check_folder(path)
    except ProfkitError:
        if not path.is_dir() or (not find_runs(path) and any(path.glob("r0*"))):
            raise
        return False
    return True


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _print_json(args: argparse.Namespace, *, is_run: bool) -> int:
    from profkit.report import as_json
    from profkit.tui import headless

    headless.check_screen(args.screen)
    if is_run:
        print(
            as_json.dumps(headless.twin(args.path, args.screen or headless.FIRST_SCREEN, args.base))
        )
    elif args.screen:
        raise UsageError(
            f"--screen {args.screen} is about one run, and {args.path} is a folder of runs; name one of them"
        )
    else:
        print(as_json.dumps(headless.runs_twin(args.path)))
    return ExitCode.DONE


def _take_screenshot(args: argparse.Namespace) -> int:
    from profkit.commands._shapes import write_file
    from profkit.tui import headless

    write_file(args.screenshot, headless.take_picture(_app(args), args.size))
    return ExitCode.DONE


def _print_text(path: Path, *, is_run: bool) -> int:
    """What there is to read without a terminal."""
    print(
        "profkit: no terminal here, so this is the text report (see also --json and --screenshot)",
        file=sys.stderr,
    )
    if is_run:
        from profkit.analysis.kept_ceilings import load_ceilings
        from profkit.analysis.overview import build_overview
        from profkit.report import as_text
        from profkit.trace import Trace

        trace = Trace.open(path)
        print(as_text.overview(build_overview(trace, load_ceilings(trace.manifest.environment))))
    else:
        from profkit.report import runs_text
        from profkit.tui.headless import read_runs

        print(runs_text.runs(read_runs(path), path))
    return ExitCode.DONE


def _show(args: argparse.Namespace) -> int:
    if os.environ.get("SSH_CONNECTION"):
        os.environ.setdefault("TEXTUAL_FPS", SLOW_LINE_FPS)
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    app = _app(args)
    gc.freeze()  # all that was imported stays: a collection that looks through it takes longer than a key may
    app.run()
    return int(app.return_code or ExitCode.DONE)


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
