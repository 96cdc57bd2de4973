"""One run compared with figures that somebody published for its setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.published_file import PublishedFigure
from profkit.explain.rules.published_mismatch import MIN_DIFFERENCE
from profkit.trace import RunManifest, Trace


@dataclass(frozen=True)
class PublishedComparison:
    """A run's figures, and the published ones of its setting, the nearest first."""

    view: Overview
    run: RunManifest
    figures: tuple[PublishedFigure, ...]
    in_file: int

    def ratio(self, figure: PublishedFigure) -> float:
        """Return the run's throughput as a share of a published one."""
        return self.view.throughput.value / figure.throughput

    def agrees(self, figure: PublishedFigure) -> bool:
        """Return true if the difference is one that publishers tolerate, or the interval has it."""
        own = self.view.throughput
        if (
            own.low is not None
            and own.high is not None
            and own.low <= figure.throughput <= own.high
        ):
            return True
        return abs(self.ratio(figure) - 1) <= MIN_DIFFERENCE


def compare_with_published(trace: Trace, figures: Sequence[PublishedFigure]) -> PublishedComparison:
    """Return the published figures that are for this run."""
    view, run = build_overview(trace, with_kernels=False), trace.manifest
    own = view.throughput.value
    fitting = sorted(
        (each for each in figures if each.fits(run)),
        key=lambda each: abs(own / each.throughput - 1),
    )
    return PublishedComparison(view, run, tuple(fitting), len(figures))
