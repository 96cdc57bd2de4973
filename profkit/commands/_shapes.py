"""The shapes that a report may have, and where it goes: the screen, a file, or the summary of a job on GitHub."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from profkit.commands._options import add_json
from profkit.errors import ProfkitError, UsageError
from profkit.text import safe_text

SHAPES = ("text", "json", "markdown", "html", "github")
SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names the file that GitHub shows as the summary of a step."""

_SUFFIXES = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".txt": "text",
}

Renderers = Mapping[str, Callable[[], str]]
"""For each shape but `github`, which is Markdown, what makes it."""


def add_shapes(parser: argparse.ArgumentParser) -> None:
    shapes = parser.add_mutually_exclusive_group()
    add_json(shapes)
    shapes.add_argument(
        "--format",
        choices=SHAPES,
        help=f"text, JSON, Markdown, one HTML file, or Markdown appended to ${SUMMARY} (default: what --write's name ends in, else text)",
    )
    parser.add_argument(
        "-o", "--write", type=Path, metavar="FILE", help="write to this file, not to the screen"
    )


def deliver(args: argparse.Namespace, renderers: Renderers) -> None:
    """Make the report in the shape that was asked for, and put it where it was asked for."""
    shape = _shape(args)
    if shape == "github":
        _append_summary(args, renderers)
    elif args.write:
        write_file(args.write, renderers[shape]())
        print(f"wrote {safe_text(str(args.write))}", file=sys.stderr)
    else:
        print(renderers[shape]().removesuffix("\n"))


def check_shape(args: argparse.Namespace) -> None:
    """Refuse what cannot be delivered before anything is read."""
    shape = _shape(args)
    if args.write and args.write.is_dir():
        raise UsageError(f"{safe_text(str(args.write))}: a folder; name a file in it")
    if shape == "github" and args.write:
        raise UsageError(
            f"--format github appends to the file that ${SUMMARY} names; leave --write out, or write --format markdown"
        )
    if shape == "github" and not os.environ.get(SUMMARY):
        raise UsageError(
            f"--format github appends to the file that ${SUMMARY} names, and that is not set; outside GitHub's jobs write --format markdown"
        )


def _shape(args: argparse.Namespace) -> str:
    by_name = _SUFFIXES.get(args.write.suffix.lower(), "text") if args.write else "text"
    return "json" if args.json else args.format or by_name


def _append_summary(args: argparse.Namespace, renderers: Renderers) -> None:
    """The job's log gets the text, its summary the Markdown."""
    summary = Path(os.environ[SUMMARY])
    made = renderers["markdown"]()
    try:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(made + "\n")
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(summary))}: {error.strerror}; it is the file that ${SUMMARY} names"
        ) from error
    print(renderers["text"]())


def write_file(path: Path, content: str) -> None:
    """Write `content`, so that a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(
            content.removesuffix("\n") + "\n",
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
        )
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ProfkitError(
            f"{safe_text(str(path))}: {error.strerror}; name a file in a folder that exists, may be written to and has room"
        ) from error
