"""The words for causes, for what they leave open, and for what else differs."""

from __future__ import annotations

import math

from profkit.analysis.config_join import Recorded
from profkit.explain.coverage import Coverage
from profkit.explain.ledger import Ledger, Verdict
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import Cause
from profkit.explain.titles import full_title
from profkit.explain.turned import turn_ledger
from profkit.frame.costs import REST
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import NEGLIGIBLE
from profkit.show.figures import interval_in_brackets
from profkit.text import duration, percent

MOST_SETTINGS = 3
"""Settings that a sentence names; all of them are in the JSON."""


def no_cause_words(ledger: Ledger, coverage: Coverage | None = None) -> str:
    """Return what it means that no cause was found; the coverage may name a row itself."""
    words = "No cause stands out from the noise."
    least_ns = POLICY.material_share * ledger.total.base.value
    changed = []
    for row in ledger.rows:
        is_sure = ledger.verdict_of(row) in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
        if is_sure and abs(row.delta.value) >= least_ns:
            changed.append(row.name)
    if coverage is not None and coverage.row:
        words = ""
    elif changed and not ledger.unlike:
        words = f"No rule names what changed by more than the noise: {', '.join(changed)}."
    if PhaseClock.LAUNCH in (ledger.base.clock, ledger.target.clock):
        words += " Causes in what the device did cannot be found without device times."
    elif not ledger.base.exchange_timed:
        words += " The exchange of gradients cannot be one here: it was not timed."
    return words.strip()


def doubted_causes(ledger: Ledger) -> str:
    """Return a warning about causes if the machine may have made the change."""
    if not ledger.doubt:
        return ""
    return "The machine, not the job, may be the reason for any of these."


def coverage_words(coverage: Coverage | None, *, is_gain: bool) -> str:
    """Return how much of the gap the causes explain, and where the rest is; empty if unknown."""
    if coverage is None:
        return ""
    gap = "gain" if is_gain else "gap"
    words = []
    if coverage.share >= 1:
        words.append(f"The causes explain the whole {gap}")
        if coverage.is_bound:
            words = ["The causes can overlap, so do not add up their shares"]
    elif coverage.share:
        at_most = "at most " if coverage.is_bound else ""
        words.append(f"The causes explain {at_most}{percent(coverage.share, 0)} of the {gap}")
    if coverage.row and coverage.row_share is not None:
        of_gap = "" if words else f" of the {gap}"
        share = "more than all" if coverage.row_share > 1 else percent(coverage.row_share, 0)
        why = "which no rule names"
        if coverage.row == REST:
            why = "which is not divided any further"
        words.append(f"{share}{of_gap} is in {coverage.row}, {why}")
        if coverage.lacks_lines:
            words.append("to see its lines, record with 'profkit run --lines on'")
    if coverage.settings:
        named = ", ".join(coverage.settings[:MOST_SETTINGS])
        left = len(coverage.settings) - MOST_SETTINGS
        if left > 0:
            named += f" and {left} more"
        what = "it" if words else f"the {gap}"
        words.append(f"settings that differ and can affect {what}: {named}")
    joined = "; ".join(words)
    return f"{joined[:1].upper()}{joined[1:]}." if words else ""


def no_difference_words(recorded: Recorded) -> str:
    """Return what was recorded on both sides and is the same."""
    if all(recorded):
        return (
            "Nothing else that both runs recorded differs: all settings, versions and variables "
            "are the same. The job's code and data are not compared."
        )
    kinds = {"settings": recorded.knobs, "versions": recorded.versions}
    kinds["variables"] = recorded.variables
    missing = " and ".join(name for name, known in kinds.items() if not known)
    names = " and ".join(name for name, known in kinds.items() if known)
    if not names:
        return "It is not known what else differs: the runs did not both record settings."
    return (
        f"Nothing else that both runs recorded differs: all {names} are the same; {missing} "
        "were not recorded on both sides. The job's code and data are not compared."
    )


def cause_name(cause: Cause) -> str:
    """Return the title of a cause; of a gain, that the target has less of it."""
    notes = ["improvement"] if cause.is_gain else []
    return full_title(cause.kind, *notes)


def cause_cost(cause: Cause, ledger: Ledger, *, is_short: bool = False) -> str:
    """Return the cost of a cause, and its share of the gap; in short, without the interval."""
    if cause.is_gain:
        ledger = turn_ledger(ledger)
    cost, share = cause.cost_ns, cause.share_of_gap
    words = "no cost measured"
    if cost:
        words = f"{duration(cost.value)} per step"
        if not is_short:
            words += interval_in_brackets(cost, duration)
    if cause.is_gain:
        words += " less"
    elif cost and ledger.verdict is Verdict.IMPROVEMENT:
        words += ", against the gain"
    if share is not None and math.isfinite(share):
        gap = "gain" if cause.is_gain else "gap"
        gap_ns = ledger.total.delta.value * ledger.samples_per_step
        if is_short and share >= 1:
            words += f", the whole {gap}"
        elif cost and cost.low is not None and cost.low <= gap_ns < cost.value:
            words += f"; within its interval, that is the whole {gap}"
        elif cost and cost.value > gap_ns * (1 + NEGLIGIBLE):
            words += f"; {beyond_gap_words(cost.value - gap_ns, ledger)}"
        else:
            words += f", {percent(min(share, 1.0), 0)} of the {gap}"
    return words


def without_words(cause: Cause) -> str:
    """Return what the target would take without a cause; empty if nothing says it."""
    step = cause.without_ns
    if step is None:
        return ""
    return (
        f"without it, the target's step would have taken {duration(step.value)}"
        f"{interval_in_brackets(step, duration)}"
    )


def beyond_gap_words(over_ns: float, ledger: Ledger) -> str:
    """Return why a cause can cost so much more than the gap between the runs."""
    factor = ledger.samples_per_step
    gap, moved = "gap", "fell"
    if ledger.turned:
        gap, moved = "gain", "grew"
    falls = [row for row in ledger.rows if row.delta.value < 0]
    fallen_ns = -sum(row.delta.value for row in falls) * factor
    if over_ns > fallen_ns * (1 + NEGLIGIBLE):
        return (
            f"that is more than the {gap}: the cost is not a row of the table, and other work hid "
            "part of it, or it is estimated too high"
        )
    most = min(falls, key=lambda row: row.delta.value)
    return (
        f"that is more than the {gap}, because other rows {moved} by {duration(fallen_ns)}, "
        f"most of all {most.name}"
    )
