"""The figures of a run cannot all be true: contradictions in a log, lost rows, torn files."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.explain.rules.base import Case, Finding
from profkit.text import plural
from profkit.trace import Trace

_REMEDY = (
    "see 'profkit verify' and 'profkit report' of that run; measure it again if what is missing "
    "matters"
)


def find(case: Case) -> Finding | None:
    said = [f"{case.base_name}: {words}" for words in _problems(case.before.trace)]
    said += [f"{case.target_name}: {words}" for words in _problems(case.after.trace)]
    if not said:
        return None
    return Finding("log_integrity", None, None, "; ".join(said), _REMEDY)


def _problems(trace: Trace) -> Iterator[str]:
    yield from trace.manifest.flags
    yield from trace.problems
    if trace.missing_ranks:
        yield f"{len(trace.missing_ranks)} of {trace.manifest.world_size} ranks have no files"
    if trace.dropped:
        yield f"{plural(trace.dropped, 'row')} could not be written"
