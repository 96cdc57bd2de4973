"""The figures of a run cannot all be true: a log that contradicts itself, rows that were lost, files that are torn."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.explain.evidence import Evidence
from profkit.explain.rules.base import Case, Finding
from profkit.text import plural

_REMEDY = "see 'profkit verify' and 'profkit report' of that run; measure it again where what is missing matters"


def find(case: Case) -> Finding | None:
    said = [
        f"{name}: {words}"
        for name, evidence in ((case.base_name, case.before), (case.target_name, case.after))
        for words in _problems(evidence)
    ]
    return Finding("log_integrity", None, None, "; ".join(said), _REMEDY) if said else None


def _problems(evidence: Evidence) -> Iterator[str]:
    trace = evidence.trace
    yield from trace.manifest.flags
    yield from trace.problems
    if trace.missing_ranks:
        yield f"no files of {len(trace.missing_ranks)} of {trace.manifest.world_size} ranks"
    if trace.dropped:
        yield f"{plural(trace.dropped, 'row')} could not be written"
