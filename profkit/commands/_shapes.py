"""The formats of a report, and its destinations: screen, file, or GitHub job summary."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._options import add_json, add_write
from profkit.errors import ProfkitError, UsageError
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.show.document import Document

SHAPES = ("text", "json", "markdown", "html", "github")
SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable with the path of the file that GitHub shows as the summary of a step."""

_SUFFIXES = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".txt": "text",
}

Renderers = Mapping[str, Callable[[], str]]
"""The function that makes each format. `github` is missing: it is made of two others."""

TEXT_IN_BRIEF = "brief"


def add_shapes(parser: argparse.ArgumentParser) -> None:
    shapes = parser.add_mutually_exclusive_group()
    add_json(shapes)
    shapes.add_argument(
        "--format",
        choices=SHAPES,
        help="text, JSON, Markdown, one HTML file, or Markdown appended to "
        f"${SUMMARY} (default: by the file name of --write, else text)",
    )
    parser.add_argument("--all", action="store_true", help="also print what plain text only names")
    add_write(parser, "write the report to this file instead of the screen")


def renderers(
    brief: Callable[[], Document],
    full: Callable[[], Document] | None = None,
    screen: Callable[[], Document] | None = None,
) -> Renderers:
    """Return the function for each format; modules of other formats are not imported.

    `brief` makes the document for JSON and text, `full` the one with charts if it is another, and
    `screen` the one for text if it is another.
    """
    illustrated = full or brief

    def as_text(*, whole: bool = True) -> str:
        from profkit.show import brief as show_brief
        from profkit.show import text

        content = (screen or brief)()
        return text.document(content) if whole else show_brief.document(content)

    def as_json() -> str:
        from profkit.show import json

        return json.dumps(json.document(brief()))

    def as_markdown() -> str:
        from profkit.show import markdown

        return markdown.document(illustrated())

    def as_html() -> str:
        from profkit.show import html
        from profkit.version import __version__

        return html.document(illustrated(), __version__)

    return {
        TEXT_IN_BRIEF: functools.partial(as_text, whole=False),
        "text": as_text,
        "json": as_json,
        "markdown": as_markdown,
        "html": as_html,
    }


def check_shape(args: argparse.Namespace) -> None:
    """Refuse what cannot be delivered before anything is read."""
    if args.write and os.path.isdir(args.write):
        raise UsageError(f"{safe_text(str(args.write))}: a folder; name a file in it")
    if _shape(args) != "github":
        return
    target = f"--format github appends to the file that ${SUMMARY} names"
    if args.write:
        raise UsageError(f"{target}; leave --write out, or write --format markdown")
    if not os.environ.get(SUMMARY):
        raise UsageError(
            f"{target}, and that is not set; outside of a GitHub job use --format markdown"
        )


def deliver(args: argparse.Namespace, makers: Renderers) -> None:
    """Make the report in the requested format and put it in the requested place."""
    shape = _shape(args)
    if shape == "github":
        _append_summary(makers)
    elif args.write:
        write_file(args.write, makers[shape]())
        print(f"wrote {safe_text(str(args.write))}", file=sys.stderr)
    else:
        in_brief = shape == "text" and not args.all
        print(makers[TEXT_IN_BRIEF if in_brief else shape]().removesuffix("\n"))


def _shape(args: argparse.Namespace) -> str:
    if args.json:
        return "json"
    if args.format or not args.write:
        return args.format or "text"
    return _SUFFIXES.get(args.write.suffix.lower(), "text")


def _append_summary(makers: Renderers) -> None:
    """Append Markdown to the job's summary and print text to its log."""
    summary = Path(os.environ[SUMMARY])
    made = makers["markdown"]()
    try:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(made + "\n")
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(summary))}: {error.strerror}; it is the file that ${SUMMARY} names"
        ) from error
    print(makers[TEXT_IN_BRIEF]())


def write_file(path: Path, content: str) -> None:
    """Write `content` so that a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    text = content.removesuffix("\n") + "\n"
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ProfkitError(
            f"{safe_text(str(path))}: {error.strerror}; "
            "name a file in a folder that exists, may be written to and has room"
        ) from error
