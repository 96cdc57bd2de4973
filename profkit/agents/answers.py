"""The answers that agents get: the JSON that the verbs print, also if it is inconclusive.

An agent names runs by paths. All of them are below one folder, the root: nothing else is read.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.errors import UsageError
from profkit.text import did_you_mean, safe_text
from profkit.trace import Trace
from profkit.trace.folders import check_folder, find_runs
from profkit.vocab import FASTER_PHASES

if TYPE_CHECKING:
    from profkit.explain.predict.prediction import Question


LIMITS = {
    "faster": (0.001, 1_000),
    "link": (0.001, 1_000),
    "workers": (0, 1_024),
    "ranks": (1, 1_024),
}
"""The least and the largest value of a change that has one."""

ANY_NUMBER = frozenset({"faster", "link"})
"""Changes whose value is no whole number."""


@dataclass(frozen=True)
class Answers:
    """Questions about the runs below a folder."""

    root: Path

    def runs(self, folder: str = "") -> dict[str, Any]:
        """List the runs in a folder (default: the root), newest first: path, workload, state.

        The paths are those that the other tools take.
        """
        from profkit.analysis.views.runs import read_head

        place = self._within(folder or ".", is_run=False)
        rows = []
        for path in reversed(find_runs(place)):
            if not self._is_within(path):
                continue
            head = read_head(path)
            row = {
                "run": str(path.resolve().relative_to(self.root)),
                "workload": safe_text(head.workload),
                "framework": safe_text(head.framework),
                "ranks": head.ranks,
                "state": head.state,
                "problem": safe_text(head.problem) or None,
            }
            rows.append(row)
        return {"root": str(self.root), "runs": rows}

    def report(self, run: str) -> dict[str, Any]:
        """Show one run: throughput with its interval, time by phase, data quality, own cost.

        If `verdict` is "cannot judge", the figures have no interval: do not conclude from them.
        """
        from profkit.analysis.kept_ceilings import load_ceilings
        from profkit.analysis.overview import build_overview
        from profkit.report.overview_document import overview

        trace = self._open(run)
        view = build_overview(trace, load_ceilings(trace.manifest.environment))
        return _plain(overview(view))

    def explain(self, base: str, target: str) -> dict[str, Any]:
        """Explain why two runs differ: rows that add up to the gap, and likely causes.

        If `verdict` is "cannot judge", `why_not_judged` says why, and what to measure next. A cause
        is in `causes`, with its cost, its evidence and a remedy.
        """
        from profkit.analysis.kept_ceilings import load_ceilings
        from profkit.explain.explained import explain
        from profkit.report.ledger_document import explained

        sides = self._open(base), self._open(target)
        found = [load_ceilings(trace.manifest.environment) for trace in sides]
        return _plain(explained(explain(*sides, (found[0], found[1]))))

    def whatif(self, run: str, change: str, value: float = 1, cause: str = "") -> dict[str, Any]:
        """Predict the step and the throughput of a changed job from a recorded run.

        `change` is link (`value` times the bandwidth), workers, ranks, faster, or without. without
        takes a `cause` that `explain` names, and faster takes a phase as `cause` and its factor as
        `value`. An answer without an interval is inconclusive, and says what to measure next.
        """
        from profkit.explain.evidence import Evidence
        from profkit.explain.predict.ask import ask
        from profkit.explain.predict.job import open_job
        from profkit.report.whatif_document import whatif as whatif_document

        question = check_question(change, value, cause)
        trace = self._open(run)
        evidence = Evidence(trace)
        if not evidence.costs.steps:
            raise UsageError(f"{safe_text(run)}: no step can be used; record more steps")
        return _plain(whatif_document([ask(open_job(evidence), question)]))

    def why(self, run: str) -> dict[str, Any]:
        """Explain why a job hangs or hung: which rank the others wait for, and at which line."""
        from profkit.hangs.account import read_account

        path = self._within(run)
        check_folder(path)
        return _plain(read_account(path))

    def _open(self, run: str) -> Trace:
        return Trace.open(self._within(run))

    def _within(self, name: str, *, is_run: bool = True) -> Path:
        """Return a path below the root; a link out of it, or in the run, is refused like `..`."""
        try:
            path = (self.root / name).resolve()
            inside = self._is_within(path) and (not is_run or self._stays_within(path))
        except (OSError, ValueError, RuntimeError):  # too long, a null in it, a loop of links
            inside = False
        if not inside:
            raise UsageError(
                f"{safe_text(name)}: not below {safe_text(str(self.root))}; "
                "the tool `runs` lists the runs that can be asked about"
            )
        return path

    def _is_within(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)

    def _stays_within(self, run: Path) -> bool:
        """Return true if no link leads out of the root, at any depth of a run."""
        folders, seen = [run], set[Path]()
        while folders:
            folder = folders.pop().resolve()
            if folder in seen or not folder.is_dir():
                continue
            seen.add(folder)
            for path in folder.iterdir():
                if path.is_symlink() and not self._is_within(path):
                    return False
                if path.is_dir():
                    folders.append(path)
        return True

    def tools(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return the questions by the name of their tool."""
        questions = self.runs, self.report, self.explain, self.whatif, self.why
        return {each.__name__: each for each in questions}


def check_question(change: str, value: float, cause: str) -> Question:
    """Return a question about a changed job; the limits are those of `profkit whatif`."""
    from profkit import plugins
    from profkit.explain.named import KINDS as CELLS
    from profkit.explain.predict.prediction import FASTER, KINDS, WITHOUT, Question

    if change not in KINDS:
        raise UsageError(f"change '{safe_text(change)}': not one of {', '.join(KINDS)}")
    if change == WITHOUT:
        known = sorted({*plugins.RULES.names(), *CELLS})
        if cause not in known:
            near = did_you_mean(cause, known)
            raise UsageError(f"cause '{safe_text(cause)}' is unknown{near}; `explain` names causes")
        return Question(WITHOUT, cause=cause)
    least, most = LIMITS.get(change, (-math.inf, math.inf))
    is_whole = change not in LIMITS or change in ANY_NUMBER or float(value).is_integer()
    if not least <= value <= most or not is_whole:
        kind = "whole numbers from "
        if change in ANY_NUMBER:
            kind = ""
        raise UsageError(f"value {value:g}: {change} takes {kind}{least:g} to {most:g}")
    if change == FASTER and cause not in FASTER_PHASES:
        phases = ", ".join(FASTER_PHASES)
        raise UsageError(f"cause '{safe_text(cause)}': faster takes a phase: {phases}")
    return Question(change, float(value), cause=cause if change == FASTER else "")


def _plain(content: Any) -> dict[str, Any]:
    """Return what a verb prints: names cannot steer a screen, and no number is infinite."""
    from profkit.show.json import dumps, of

    found: dict[str, Any] = json.loads(dumps(of(content)))
    return found


def open_root(folder: Path) -> Answers:
    """Return the answers about the runs below a folder."""
    if not folder.is_dir():
        raise UsageError(
            f"--root {safe_text(str(folder))}: no such folder; name the one that holds your runs"
        )
    return Answers(folder.resolve())


def named(function: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with the signature and documentation of `function`, which agents read."""
    return functools.wraps(function)(call)
