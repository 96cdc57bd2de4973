"""The comparison of a run with published figures, which `explain` makes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._shapes import deliver, renderers
from profkit.errors import ExitCode

if TYPE_CHECKING:
    from profkit.analysis.published_file import PublishedFigure
    from profkit.trace import Trace

KNOWN = "published"
"""In place of a run: the published figures that profkit knows."""


def compare_run(path: Path, args: argparse.Namespace) -> ExitCode:
    """Print how one run compares with the published figures."""
    from profkit.explain.published import compare_with_published
    from profkit.report import published_document
    from profkit.trace import Trace

    trace = Trace.open(path)
    compared = compare_with_published(trace, figures_for(trace, args))
    deliver(args, renderers(lambda: published_document.published(compared)))
    return ExitCode.DONE


def figures_for(trace: Trace, args: argparse.Namespace) -> Sequence[PublishedFigure]:
    """Return the published figures that a run is compared with."""
    from profkit.analysis.published_file import known_figures, read_published
    from profkit.explain.rules.published_mismatch import reference_system

    if str(args.published) == KNOWN and not args.published.exists():
        return known_figures(reference_system(trace.manifest))
    figures: Sequence[PublishedFigure] = read_published(args.published)
    return figures
