"""Compares what the screens say of a scenario's run with its truth, and with one another.

A check returns an `Outcome`. It is good if the largest error is below the tolerance, or if the
screens refuse the figure with its reason where device times are missing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profkit.frame.run_frame import frame_of
from profkit.trace import Trace
from tests.accelerator.jobs import Finished, run_ranks
from tests.accelerator.paddle_job import PaddleRank
from tests.device import screens
from tests.device.scenarios import BASE, Scenario
from tests.device.screens import Values
from tests.device.truths import Truth, alone, factors, mean

TOLERANCE = 0.02
"""Largest error of a value, as a share of the step."""

PADDLE_PROBES_NS = 10_000
"""Paddle's events are tried out once by the loop's thread, which costs it some queries."""

NS = 1.0
"""Screens differ from one another by no more than this."""


@dataclass(frozen=True)
class Outcome:
    """The largest error as a share of the step, where it is, or why there is no figure."""

    error: float = 0.0
    where: str = ""
    refused: str = ""

    @property
    def good(self) -> bool:
        return bool(self.refused) or self.error <= TOLERANCE


class Runs:
    """The runs of this session, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Finished] = {}

    def of(self, scenario: Scenario) -> Path:
        self.finished(scenario)
        return self._folder / scenario.name

    def finished(self, scenario: Scenario) -> Finished:
        if scenario.name not in self._made:
            run = self._folder / scenario.name
            made = run_ranks(scenario.kind, scenario.jobs, scenario.loop, run)
            self._made[scenario.name] = made
        return self._made[scenario.name]

    def base_of(self, scenario: Scenario) -> tuple[Path, Truth]:
        """The run to compare with: one rank of the same job, or the plain job."""
        if len(scenario.jobs) == 1:
            return self.of(BASE), BASE.truths[0]
        job = dataclasses.replace(scenario.jobs[0], idle_delay_ns=0, connections=8, no_sync=False)
        single = dataclasses.replace(scenario, name=f"{scenario.name}_1", jobs=(job,))
        return self.of(single), alone(job)


def worst(step: float, pairs: Iterable[tuple[str, float, float]]) -> Outcome:
    """Return the largest difference of pairs of values, given as name, value and truth."""
    found = Outcome()
    for name, value, truth in pairs:
        error = math.inf if math.isnan(value) else abs(value - truth) / step
        if error > found.error:
            found = Outcome(error, f"{name}: {value / 1e6:.2f} ms, truth {truth / 1e6:.2f} ms")
    return found


def compare(found: Values, truth: Truth) -> Outcome:
    """Compare every part, also those that one side alone knows."""
    expected = {"step": truth.step, **truth.parts}
    if found.keys() == {"step"}:
        return Outcome(refused="no phase is shown")
    names = sorted({*expected, *found})
    pairs = ((name, found.get(name, 0.0), expected.get(name, 0.0)) for name in names)
    return worst(truth.step, pairs)


def check_job(runs: Runs, scenario: Scenario) -> Outcome:
    """The job takes the time that it takes without profkit, and no row is lost."""
    bare = run_ranks(scenario.kind, scenario.jobs, scenario.loop)
    recorded = runs.finished(scenario)
    allowed_ns = PADDLE_PROBES_NS if issubclass(scenario.kind, PaddleRank) else 0
    for ours, theirs in zip(recorded.ended_ns, bare.ended_ns, strict=True):
        if abs(ours - theirs) > allowed_ns:
            return Outcome(1.0, f"profkit changes the end of a rank by {ours - theirs:,} ns")
    trace = Trace.open(runs.of(scenario))
    steps = trace.steps
    if steps.num_rows != (scenario.jobs[0].steps - scenario.dropped) * len(scenario.jobs):
        return Outcome(1.0, f"{steps.num_rows} steps were recorded")
    if scenario.faultless != scenario.jobs:
        sound = dataclasses.replace(
            scenario, jobs=scenario.faultless, name=f"{scenario.name}_sound"
        )
        rows, expected = trace.spans.num_rows, Trace.open(runs.of(sound)).spans.num_rows
        if rows != expected:
            return Outcome(1.0, f"{rows} of {expected} spans were recorded")
    wall = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()).astype(float)
    used = np.isin(steps["step"].to_numpy(), frame_of(trace).selection.steps)
    truth = mean(scenario.truths).step
    return worst(truth, [("step", float(wall[used].mean()), truth)])


def check_single(read: Callable[[Path], Values], runs: Runs, scenario: Scenario) -> Outcome:
    """A screen that shows the mean over the ranks."""
    run = runs.of(scenario)
    return refuse(run, scenario, compare(read(run), mean(scenario.truths)))


def check_each_rank(
    read: Callable[[Path], list[Values]], runs: Runs, scenario: Scenario
) -> Outcome:
    """A screen that shows each rank."""
    run = runs.of(scenario)
    outcomes = []
    for found, truth in zip(read(run), scenario.truths, strict=True):
        outcomes.append(compare(found, truth))
    return refuse(run, scenario, max(outcomes, key=lambda outcome: outcome.error))


def refuse(run: Path, scenario: Scenario, outcome: Outcome) -> Outcome:
    """Accept other figures if device times are missing, and the first screen says so."""
    if outcome.good or not scenario.says_missing:
        return outcome
    notice = screens.refusal(run)
    return Outcome(refused=notice) if notice else outcome


def check_ledger(runs: Runs, scenario: Scenario) -> Outcome:
    """The target's side of `explain`, and its verdict."""
    base, base_truth = runs.base_of(scenario)
    values, found = screens.ledger(base, runs.of(scenario), scenario.samples)
    reason = str(found["why_not_judged"])
    if scenario.says_missing and found["verdict"] == "cannot judge" and "device time" in reason:
        return Outcome(refused=reason)
    truth = mean(scenario.truths)
    outcome = compare(values, truth)
    if scenario.says_missing and values.keys() <= {"step", "data", "rest"}:
        return worst(truth.step, [("step", values["step"], truth.step)])
    per_sample = base_truth.step / (BASE.samples if len(scenario.jobs) == 1 else scenario.samples)
    change = truth.step / scenario.samples / per_sample - 1
    verdict = "neutral"
    if abs(change) > TOLERANCE:
        verdict = "regression" if change > 0 else "improvement"
    if outcome.good and found["verdict"] != verdict:
        return Outcome(abs(change), f"verdict '{found['verdict']}' of a change of {change:+.1%}")
    return outcome


def check_cause(runs: Runs, scenario: Scenario) -> Outcome:
    """`explain` names the cause of the gap with its cost, and nothing else that costs as much."""
    base, _ = runs.base_of(scenario)
    _, found = screens.ledger(base, runs.of(scenario), scenario.samples)
    if scenario.says_missing and found["verdict"] == "cannot judge":
        return Outcome(refused=str(found["why_not_judged"]))
    step = mean(scenario.truths).step
    expected = {(each.kind, each.phase): each.cost for each in scenario.causes}
    named = {}
    for cause in found["causes"]:
        cost = cause["cost_ns_per_step"]
        key = cause["kind"], str(cause["cause"] or "")
        if key not in expected:  # the place, where no phase is expected
            key = cause["kind"], ""
        named[key] = float(cost["value"]) if cost else 0.0
    if scenario.says_missing and not named:
        return Outcome(refused="no cause is named")
    pairs = []
    for key in {*named, *expected}:
        pairs.append((" ".join(key).strip(), named.get(key, 0.0), expected.get(key, 0.0)))
    return worst(step, pairs)


def check_scaling(runs: Runs, scenario: Scenario) -> Outcome:
    """The scaling table of one rank and of all."""
    if len(scenario.jobs) == 1:
        return Outcome(refused="one rank does not scale")
    base, truth = runs.base_of(scenario)
    row = screens.scaling(base, runs.of(scenario))
    found = {"efficiency": row["efficiency_share"]["value"]}
    for name, factor in row["factors_ratio"].items():
        found[name] = factor["value"]
    missing = [name for name, value in found.items() if value is None or math.isnan(value)]
    if missing:
        return Outcome(refused=f"no value for {', '.join(missing)}")
    expected = factors(truth, mean(scenario.truths))
    pairs = [(name, 1e6 * found[name], 1e6 * value) for name, value in expected.items()]
    return worst(1e6, pairs)


def check_exchange(runs: Runs, scenario: Scenario) -> Outcome:
    """The exchange of each rank in the report: exposed, waiting for others, and transfer."""
    run = runs.of(scenario)
    found = screens.exchange(run)
    if len(scenario.jobs) == 1:
        return Outcome(1.0, "an exchange of one rank") if found else Outcome()
    if scenario.says_missing and len(found) < len(scenario.jobs):
        return Outcome(refused=f"{len(found)} ranks have an exchange")
    if len(found) != len(scenario.jobs):
        return Outcome(1.0, f"{len(found)} ranks have an exchange")
    pairs = []
    for rank, (row, truth) in enumerate(zip(found, scenario.truths, strict=True)):
        expected = {
            "exposed": truth.allreduce,
            "waiting": truth.waiting,
            "transfer": truth.allreduce - truth.waiting,
        }
        for name, value in expected.items():
            pairs.append((f"{name} of rank {rank}", row.get(name, np.nan), value))
    return worst(scenario.truths[0].step, pairs)


def check_agreement(runs: Runs, scenario: Scenario) -> Outcome:
    """All screens show the same figures, to the nanosecond."""
    run = runs.of(scenario)
    first = screens.overview(run)
    others: dict[str, Values] = {"report": screens.report(run)}
    if not scenario.says_missing:
        rows = screens.ranks(run)
        names = {name for row in rows for name in row}
        others["ranks"] = {
            name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names
        }
    # The samples of a dropped batch count, so values per sample are lower than those per step.
    if not scenario.says_missing and not scenario.dropped:
        base = runs.base_of(scenario)[0]
        others["explain"], _ = screens.ledger(base, run, scenario.samples)
    for screen, values in others.items():
        for name in sorted({*first, *values}):
            one, other = first.get(name, 0.0), values.get(name, 0.0)
            if not abs(one - other) <= NS:
                return Outcome(1.0, f"{name}: overview {one:,.1f} ns, {screen} {other:,.1f} ns")
    return Outcome()


CHECKS: Mapping[str, Callable[[Runs, Scenario], Outcome]] = {
    "job": check_job,
    "report": functools.partial(check_single, screens.report),
    "overview": functools.partial(check_single, screens.overview),
    "live": functools.partial(check_single, screens.live),
    "ranks": functools.partial(check_each_rank, screens.ranks),
    "timeline": functools.partial(check_each_rank, screens.timeline),
    "ledger": check_ledger,
    "cause": check_cause,
    "scaling": check_scaling,
    "exchange": check_exchange,
    "agreement": check_agreement,
}
