"""Caveats of a comparison with a run whose step time changed while it lasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.analysis.change_words import say_change
from profkit.analysis.run_change import ChangeKind
from profkit.analysis.run_changes import find_changes
from profkit.analysis.selection import including_batches
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import Ledger
from profkit.explain.verdict import Verdict

LASTING = (ChangeKind.STEP, ChangeKind.DRIFT)


def change_caveats(ledger: Ledger, runs: Sequence[Evidence]) -> Iterator[str]:
    """Yield the largest lasting change of each run whose mean settles nothing.

    Its intervals are wide because it has two levels, and what lies between them has its own causes.
    """
    if ledger.verdict is not Verdict.CANNOT_JUDGE:
        return
    for run in runs:
        if run.trace.is_part:
            continue
        changes = find_changes(run.trace, including_batches(run.costs.selection))
        lasting = [change for change in changes if change.kind in LASTING]
        if lasting:
            change = max(lasting, key=lambda each: abs(each.after_ns.value - each.before_ns.value))
            yield (
                f"{run.trace.name}: {say_change(change)}; its figures here are means over both "
                f"parts, which 'profkit explain RUN --at {change.first_step}' compares"
            )
