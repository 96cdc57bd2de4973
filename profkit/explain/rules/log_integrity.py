"""The figures of a run cannot all be true: contradictions in a log, lost rows, torn files."""

from __future__ import annotations

import re

from profkit.explain.rules.base import Case, Cause
from profkit.frame.notices import is_log
from profkit.text import plural
from profkit.trace.flag import HARMLESS

_REMEDY = (
    "see 'profkit verify' and 'profkit report' of that run; measure it again if what is missing "
    "matters"
)
_REMEDY_OF_LOG = "read the notes before relying on the figures"
_LINES_OF_LOG = ", and look at the lines of the log that they name"


def find(case: Case) -> Cause | None:
    said = []
    for name, evidence in ((case.base_name, case.before), (case.target_name, case.after)):
        trace = evidence.trace
        problems = []
        flags = [flag for flag in trace.manifest.flags if flag.kind not in HARMLESS]
        if doubts := len(flags) + len(trace.problems):
            which = "which the note above names" if doubts == 1 else "which the notes above name"
            problems.append(f"{plural(doubts, 'doubt')}, {which}")
        if trace.missing_ranks and not is_log(trace):
            ranks = trace.manifest.world_size
            problems.append(f"{len(trace.missing_ranks)} of {ranks} ranks have no files")
        if trace.dropped:
            problems.append(f"{plural(trace.dropped, 'row')} could not be written")
        said += [f"{name}: {problem}" for problem in problems]
    if not said:
        return None
    remedy = _REMEDY
    if is_log(case.before.trace) and is_log(case.after.trace):
        remedy = _REMEDY_OF_LOG
        every = [*case.before.trace.manifest.flags, *case.after.trace.manifest.flags]
        if re.search(r"\(lines? \d", "\n".join(every)):  # a flag says which lines it is about
            remedy += _LINES_OF_LOG
    return Cause("log_integrity", None, None, "; ".join(said), remedy)
