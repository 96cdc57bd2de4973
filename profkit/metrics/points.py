"""The metrics that profkit exports, and their values for a run.

A metric whose value is not known is missing; zero means that zero was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from profkit.analysis.overview import Overview
from profkit.analysis.views.live import LiveView
from profkit.frame.estimate import Estimate, scale
from profkit.text import safe_text
from profkit.vocab import RunState

NS_IN_S = 1e-9


@dataclass(frozen=True)
class Metric:
    """One metric, in base units; it has its `labels` and those of every run."""

    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    live: bool = True
    """False if only a run that has ended has it."""


LATEST, WHOLE = "profkit", "profkit/report"
"""What the names in trackers begin with: figures of the latest steps, and of the whole run."""

RUN_LABELS = ("run", "workload")
"""Labels of every metric."""

_ABOUT = (
    Metric("profkit_run_info", "", "Always 1; its labels describe the run", ("framework", "state")),
    Metric("profkit_ranks", "", "Ranks of the job"),
    Metric("profkit_ranks_seen", "", "Ranks that wrote into the run's folder"),
    Metric("profkit_steps", "", "Steps that were recorded, counted from the first"),
    Metric("profkit_steps_used", "", "Steps that the times and the throughput are about"),
    Metric("profkit_step_seconds", "s", "Mean wall time of a step"),
    Metric("profkit_step_low_seconds", "s", "Lower end of its 95 % interval"),
    Metric("profkit_step_high_seconds", "s", "Upper end of its 95 % interval"),
    Metric(
        "profkit_throughput_samples_per_second", "1/s", "Samples per second, all ranks together"
    ),
    Metric("profkit_throughput_low_samples_per_second", "1/s", "Lower end of its 95 % interval"),
    Metric("profkit_throughput_high_samples_per_second", "1/s", "Upper end of its 95 % interval"),
    Metric("profkit_phase_seconds", "s", "Mean exposed time of a phase per step", ("phase",)),
    Metric("profkit_phase_ratio", "1", "Share of a phase of the step's wall time", ("phase",)),
    Metric("profkit_loss", "", "The newest loss that the job itself read"),
    Metric("profkit_last_step_timestamp_seconds", "s", "Time of day at which the last step ended"),
    Metric("profkit_stalled", "", "1 if nothing was written for much longer than a step takes"),
    Metric("profkit_rank_step", "", "Newest step of a followed rank", ("rank",)),
    Metric("profkit_excluded_steps", "", "Steps without part in the figures", ("reason",), False),
    Metric("profkit_own_cost_seconds", "s", "Time per step that profkit itself took", (), False),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ABOUT})


@dataclass(frozen=True)
class Point:
    """The value of a metric, with its labels."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The metrics of a run at one moment, the newest step, and the run's name."""

    points: tuple[Point, ...]
    step: int | None
    run: str = ""


def of_live(view: LiveView, world_size: int, now_s: float) -> Snapshot:
    """Return the metrics of a run that is being written, over its latest steps.

    Of a job with more ranks than are followed, nobody knows the throughput before it ends.
    """
    world_size = max(world_size, view.world_size)
    throughput = view.throughput
    if view.ranks_followed < world_size:
        throughput = Estimate(math.nan)
    found = _Points(view.name, view.workload)
    found.add("profkit_run_info", 1, framework=view.framework, state=view.state.value)
    found.add("profkit_ranks", world_size)
    found.add("profkit_ranks_seen", view.ranks_in_all)
    if view.newest_step is not None:
        found.add("profkit_steps", view.newest_step + 1)
    found.add("profkit_steps_used", view.recent_steps)
    found.add_speed(view.step_ns, throughput)
    for part in view.parts:
        found.add("profkit_phase_seconds", part.step_ns * NS_IN_S, phase=part.name)
        found.add("profkit_phase_ratio", part.share, phase=part.name)
    found.add("profkit_loss", view.loss)
    if view.age_ns is not None:
        found.add("profkit_last_step_timestamp_seconds", now_s - view.age_ns * NS_IN_S)
    if view.state is RunState.RUNNING:
        found.add("profkit_stalled", float(view.stalled))
        for place in view.places:
            found.add("profkit_rank_step", place.step, rank=str(place.rank))
    return Snapshot(tuple(found.points), view.newest_step, safe_text(view.name))


def of_overview(view: Overview, last_step_s: float | None) -> Snapshot:
    """Return the metrics of a whole run, with the figures that `report` shows.

    Figures that `report` shows without a verdict are missing: a metric cannot carry the reason.
    """
    nothing = Estimate(math.nan)
    step_ns, throughput = view.step_ns, view.throughput
    if not view.times_hold:
        step_ns = nothing
    if not view.is_whole:
        throughput = nothing
    found = _Points(view.name, view.workload)
    found.add("profkit_run_info", 1, framework=view.framework, state=view.state.value)
    found.add("profkit_ranks", view.world_size)
    found.add("profkit_ranks_seen", view.ranks_seen)
    found.add("profkit_steps", view.steps_seen)
    found.add("profkit_steps_used", view.steps_used)
    found.add_speed(step_ns, throughput)
    for part in view.phases if view.times_hold else ():
        found.add("profkit_phase_seconds", part.step_ns.value * NS_IN_S, phase=part.name)
        found.add("profkit_phase_ratio", part.share.value, phase=part.name)
    found.add("profkit_loss", view.last_loss)
    found.add("profkit_last_step_timestamp_seconds", last_step_s)
    for reason, count in view.left_out.items():
        found.add("profkit_excluded_steps", count, reason=reason)
    total_ns = view.own_cost.total_ns
    if total_ns is not None and view.times_hold:
        found.add("profkit_own_cost_seconds", total_ns * NS_IN_S)
    steps = view.selection.steps
    newest = int(steps[-1]) if len(steps) else None
    return Snapshot(tuple(found.points), newest, view.name)


class _Points:
    """Collects the points of a run, without those whose value is not known."""

    def __init__(self, run: str, workload: str) -> None:
        self.points: list[Point] = []
        self._labels = dict(zip(RUN_LABELS, (run, workload), strict=True))

    def add(self, name: str, value: float | None, **labels: str) -> None:
        if value is not None and math.isfinite(value):
            shown = {label: safe_text(text) for label, text in {**self._labels, **labels}.items()}
            self.points.append(Point(METRICS[name], float(value), shown))

    def add_speed(self, step_ns: Estimate, throughput: Estimate) -> None:
        for stem, estimate in (
            ("profkit_step_{}seconds", scale(step_ns, NS_IN_S)),
            ("profkit_throughput_{}samples_per_second", throughput),
        ):
            bounds = {"": estimate.value, "low_": estimate.low, "high_": estimate.high}
            for bound, value in bounds.items():
                self.add(stem.format(bound), value)


def flat_names(snapshot: Snapshot, prefix: str = LATEST) -> Iterator[tuple[str, float]]:
    """Yield each figure under one name, as experiment trackers want it: `phase_seconds/data`."""
    for point in snapshot.points:
        if point.metric.name == "profkit_run_info":
            continue
        own = [point.labels[label] for label in point.metric.labels]
        yield "/".join([prefix, point.metric.name.removeprefix("profkit_"), *own]), point.value
