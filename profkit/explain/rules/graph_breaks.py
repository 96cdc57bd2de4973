"""A compiled function is divided at places that the compiler cannot follow, or given up."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.explain.evidence import Evidence
from profkit.explain.rules._compiling import compiling_of
from profkit.explain.rules.base import Case, Cause, here, other_side
from profkit.frame.compiling import join_reason
from profkit.text import plural

MOST_NAMED = 3

_REMEDY = (
    "move prints, .item() and other reads on the host out of the compiled function, or compile "
    "with fullgraph=True, which stops at the first break; compare both ways to see what they cost"
)


def find(case: Case) -> Cause | None:
    """Compare the places at which functions are divided, and functions that were given up.

    What a graph break costs is not measured: less is fused, and Python runs in between.
    """
    breaks, failed = zip(_places(case.before), _places(case.after), strict=True)
    other = other_side(case.ledger)
    said = []
    if new := _more(*breaks):
        divided = f"compiled functions are divided at {plural(len(breaks[1]), 'place')}"
        said.append(f"{divided}, {len(breaks[0]):,} in the {other}: {new}")
    if new := _more(*failed):
        given_up = f"{plural(len(failed[1]), 'function')} could not be compiled"
        said.append(f"{given_up}, {len(failed[0]):,} in the {other}: {new}")
    if not said:
        return None
    evidence = f"{here(case.ledger)}{'; '.join(said)}; what that costs is not measured"
    return Cause("graph_breaks", None, None, evidence, _REMEDY)


def _more(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the first new places, if there are more of them than before."""
    new = [place for place in after if place not in before]
    if len(after) <= len(before) or not new:
        return ""
    named = "; ".join(new[:MOST_NAMED])
    more = len(new) - MOST_NAMED
    return f"{named}; and {more:,} more" if more > 0 else named


def _places(evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the places of graph breaks, and the functions that could not be compiled."""
    found = evidence.figure(compiling_of)
    if found is None:
        return (), ()
    failed = (join_reason(*which) for which, _ in found.failed)
    return tuple(dict(found.breaks)), tuple(failed)
