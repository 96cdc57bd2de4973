"""Caveats of a comparison of two parts of one run."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.run_changes import LEAST_OTHER_BATCH
from profkit.explain.evidence import Evidence
from profkit.text import amount

ONE_RUN = (
    "both sides are parts of one run: what changed in between may be the job, its data, or the "
    "machine; the intervals hold the noise within each part"
)


def part_caveats(before: Evidence, after: Evidence) -> Iterator[str]:
    """Yield that both sides are one run, and that its batch changed in between."""
    if not before.trace.is_part:
        return
    yield ONE_RUN
    first, then = before.step_samples, after.step_samples
    if first and then and abs(then / first - 1) > LEAST_OTHER_BATCH:
        yield (
            f"a step trains on {amount(then)} instead of {amount(first)} samples per rank, which "
            "is the job's own change; the rows compare times per sample"
        )
