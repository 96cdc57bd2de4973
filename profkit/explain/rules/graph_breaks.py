"""A compiled function is divided at places that the compiler cannot follow."""

from __future__ import annotations

from profkit.explain.evidence import Evidence
from profkit.explain.rules._compiling import compiling_of
from profkit.explain.rules.base import Case, Cause, here, other_side
from profkit.text import plural

MOST_NAMED = 3

_REMEDY = (
    "move prints, .item() and other reads on the host out of the compiled function, or compile "
    "with fullgraph=True, which stops at the first break; compare both ways to see what they cost"
)


def find(case: Case) -> Cause | None:
    """Compare the places at which functions are divided.

    What a graph break costs is not measured: less is fused, and Python runs in between.
    """
    after = _places(case.after)
    before = _places(case.before)
    new = [place for place in after if place not in before]
    if len(after) <= len(before) or not new:
        return None
    named = "; ".join(new[:MOST_NAMED])
    more = len(new) - MOST_NAMED
    if more > 0:
        named += f"; and {more:,} more"
    evidence = (
        f"{here(case.ledger)}compiled functions are divided at {plural(len(after), 'place')}, "
        f"{len(before):,} in the {other_side(case.ledger)}: {named}; "
        "what that costs is not measured"
    )
    return Cause("graph_breaks", None, None, evidence, _REMEDY)


def _places(evidence: Evidence) -> tuple[str, ...]:
    found = evidence.figure(compiling_of)
    return () if found is None else tuple(place for place, _ in found.breaks)
