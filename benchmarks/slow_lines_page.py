"""The section of docs/accuracy.md about slow lines."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profkit.analysis.estimate import Estimate

VARIANTS = ("development", "held_out", "third")
FIRST_GOAL, COST_GOAL = 0.9, 0.15


@dataclass(frozen=True)
class Score:
    """One slow line: what the report and `explain` say of it; times in ns per step."""

    job: str
    plant: str
    line: int
    true_ns: float
    named: str
    phase: str
    named_ns: Estimate | None
    explained: str
    is_first: bool
    is_explained: bool

    @property
    def error(self) -> float | None:
        """The relative error of the cost; `None` if the line is not named at all."""
        return None if self.named_ns is None else self.named_ns.value / self.true_ns - 1

    @property
    def holds_truth(self) -> bool:
        """True if the true cost is within the interval."""
        if self.named_ns is None or self.named_ns.low is None or self.named_ns.high is None:
            return False
        return self.named_ns.low <= self.true_ns <= self.named_ns.high


def as_markdown(scores: Sequence[Score], line_s: float, missing: Sequence[str] = ()) -> str:
    """Return the section of docs/accuracy.md; `missing` are slow lines without a run."""
    when = time.strftime("%Y-%m-%d", time.gmtime())
    load = os.getloadavg()[2]
    about = (
        "Twelve slow lines are planted in each of three jobs, one at a time, and recorded with "
        "`--stacks loop` (`benchmarks/slow_lines.py`). The jobs measure with their own clock what "
        'the line costs. *First in the report*: the line comes first in its phase under "Where in '
        'the code". *First in explain*: of the lines that differ from a run without it, it grew '
        "most. *Interval*: the 95 % interval of the report, in ms. The held-out job was not used "
        "while the analysis was first written. Misses in both were seen before the sampler and the "
        "weights of 2026-11-27 were. The third job was written without knowledge of either, and "
        "run for the first time afterwards."
    )
    written = (
        f"Written {when}, Python {platform.python_version()}, {os.cpu_count()} cores, load average "
        f"{load:.1f} over the last 15 minutes. Each run is so long that the slow line takes about "
        f"{line_s:.0f} s of it."
    )
    if missing:
        written += f" Not run yet: {', '.join(missing)}."
    header = "phase | first in the report | first in explain | true cost, ms | named cost, ms"
    lines = ["## Slow lines", "", about, "", written, ""]
    lines += [
        "|  | goal | development | held-out | third |",
        "|---|---|---|---|---|",
        *_summary(scores),
        "",
    ]
    lines += [
        f"| slow line | job | line | {header} | interval | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in scores:
        named = "- | -" if each.named_ns is None else _words(each.named_ns)
        error = "-" if each.error is None else f"{each.error:+.0%}"
        first = "yes" if each.is_first else f"no: {_code(each.named)}"
        explained = "yes" if each.is_explained else f"no: {_code(each.explained)}"
        lines.append(
            f"| {each.plant} | {each.job.replace('_', '-')} | {each.line} | {each.phase or '-'} | "
            f"{first} | {explained} | {each.true_ns / 1e6:.2f} | {named} | {error} |"
        )
    return "\n".join(lines) + "\n"


def _words(time: Estimate) -> str:
    low, high = time.low or 0.0, time.high or 0.0
    return f"{time.value / 1e6:.2f} | {low / 1e6:.2f} to {high / 1e6:.2f}"


def _code(text: str) -> str:
    return f"`{text}`" if text not in ("", "-") else "none"


def _summary(scores: Sequence[Score]) -> Iterator[str]:
    rows = {"slow lines that come first in the report": (f"{FIRST_GOAL:.0%}", _share_first)}
    rows["slow lines that come first in explain"] = ("-", _share_explained)
    rows["error of the line's cost, median"] = ("-", _median_error)
    rows["lines whose cost is off by more than 15%"] = ("0", _far_off)
    rows["lines whose true cost is within the interval"] = ("95%", _share_held)
    for title, (goal, figure) in rows.items():
        cells = []
        for job in VARIANTS:
            own = [each for each in scores if each.job == job]
            cells.append(figure(own) if own else "-")
        yield f"| {title} | {goal} | {' | '.join(cells)} |"


def _share_first(scores: Sequence[Score]) -> str:
    return f"{sum(each.is_first for each in scores)} of {len(scores)}"


def _share_explained(scores: Sequence[Score]) -> str:
    return f"{sum(each.is_explained for each in scores)} of {len(scores)}"


def _share_held(scores: Sequence[Score]) -> str:
    return f"{sum(each.holds_truth for each in scores)} of {len(scores)}"


def _errors(scores: Sequence[Score]) -> list[float]:
    return [abs(each.error) for each in scores if each.error is not None]


def _median_error(scores: Sequence[Score]) -> str:
    errors = _errors(scores)
    return f"{statistics.median(errors):.0%} of {len(errors)}" if errors else "-"


def _far_off(scores: Sequence[Score]) -> str:
    errors = _errors(scores)
    return f"{sum(error > COST_GOAL for error in errors)} of {len(errors)}"
