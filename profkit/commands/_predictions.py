"""The file of predictions, as an option of several verbs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError
from profkit.text import safe_text, shell_word


def add_predictions(parser: Any) -> None:
    """Declare the file of predictions, which a run may be the outcome of."""
    words = "file of the record (default: predictions.jsonl next to the run)"
    parser.add_argument("--predictions", type=Path, metavar="FILE", help=words)


def check_predictions(args: argparse.Namespace) -> None:
    """Raise an `UnreadableError` if the command line names a file that is not there.

    A setting may name one that the first prediction is yet to make.
    """
    file: Path | None = args.predictions
    is_named = any(word.partition("=")[0] == "--predictions" for word in args.words)
    if file is None or not is_named or file.is_file():
        return
    problem = "no such file of predictions"
    if file.exists():
        problem = "not a file, and predictions are in one"
    makes = f"profkit whatif RUN --link 2x --predictions {shell_word(str(file))}"
    raise UnreadableError(f"--predictions {safe_text(str(file))}: {problem}; '{makes}' makes one")
