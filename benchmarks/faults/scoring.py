"""Compare what profkit reports for each pair with the injected fault, and write the page."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pairs import BASE, DONE, TARGET, done_at, folder_of, why_not
from plants import DEVELOPMENT, FAULTS, HELD_OUT, Fault, as_words

from profkit.environment import read_environment
from profkit.errors import UnreadableError
from profkit.explain.explained import explain
from profkit.explain.rules.base import Cause
from profkit.text import table
from profkit.trace import Trace
from profkit.trace.reader import find_runs

WARM_UP = 10
"""Steps of the job's own clock that are excluded, because profkit excludes them as well."""

OVER_ALL = "all "
TOP = 3
NOTHING = "nothing"
GOALS = {"top-1": 0.90, "top-3": 0.98, "cost error": 0.15, "quiet": 0.95}


@dataclass(frozen=True)
class Said:
    """A reported cause, reduced to what a score needs."""

    kind: str
    cost_ms: float | None
    words: str


@dataclass(frozen=True)
class Score:
    """One trial of a pair.

    `places` holds the rank of each injected cause among the reported ones, from 0, or `None`.
    """

    fault: Fault
    variant: str
    trial: int
    causes: tuple[Said, ...]
    places: tuple[int | None, ...]
    true_ms: float | None
    at: str = ""
    """When it was run."""

    @property
    def first(self) -> str:
        return self.causes[0].kind if self.causes else NOTHING

    @property
    def top_1(self) -> bool:
        return 0 in self.places

    @property
    def top_3(self) -> bool:
        """Return true if all injected causes are among the first three."""
        return all(place is not None and place < TOP for place in self.places)

    @property
    def named_ms(self) -> float | None:
        """Return the cost that profkit states for a single injected cause, if it was found."""
        place = self.places[0] if len(self.places) == 1 else None
        return None if place is None else self.causes[place].cost_ms

    @property
    def cost_error(self) -> float | None:
        return (
            abs(self.named_ms - self.true_ms) / abs(self.true_ms)
            if self.named_ms is not None and self.true_ms
            else None
        )


def score_all(work: Path, faults: Sequence[Fault], variants: Sequence[str]) -> list[Score]:
    """Yield the score of every pair that was run with its present options."""
    known = {fault.name: fault for fault in faults}
    found = sorted(
        (work / variant, path.parent)
        for variant in variants
        for path in (work / variant).glob(f"*/*/{DONE}")
    )
    scores = (
        _score_or_say_why_not(work, known[folder.name], variant.name, int(folder.parent.name))
        for variant, folder in found
        if folder.name in known
    )
    return [score for score in scores if score is not None]


def _score_or_say_why_not(work: Path, fault: Fault, variant: str, trial: int) -> Score | None:
    folder = folder_of(work, variant, trial, fault)
    at = done_at(work, fault, variant, trial)
    try:
        if at is not None:
            return dataclasses.replace(score_pair(folder, fault, variant, trial), at=at)
    except (OSError, ValueError, IndexError, UnreadableError) as error:
        if (folder / DONE).exists():
            raise SystemExit(
                f"{folder}: cannot be scored ({error}); take it away and run it again"
            ) from error
    why = (
        "something else was planted when it was run; run it again"
        if (folder / DONE).exists()
        else "it is being run again"
    )
    print(f"{folder}: left out, {why}", file=sys.stderr)
    return None


def score_pair(folder: Path, fault: Fault, variant: str, trial: int) -> Score:
    base, target = (Trace.open(find_runs(folder / side)[-1]) for side in (BASE, TARGET))
    causes = tuple(_said(cause) for cause in explain(base, target).causes)
    places = tuple(_place(causes, kinds, fault.words) for kinds in fault.causes)
    return Score(fault, variant, trial, causes, places, true_cost_ms(folder, fault))


def _said(cause: Cause) -> Said:
    return Said(
        cause.kind,
        cause.cost_ns.value / 1e6 if cause.cost_ns else None,
        f"{cause.detail} {cause.evidence}",
    )


def _place(causes: Sequence[Said], kinds: Sequence[str], words: Sequence[str]) -> int | None:
    rightly = (
        number
        for number, each in enumerate(causes)
        if each.kind in kinds and (not words or any(word in each.words for word in words))
    )
    return next(rightly, None)


def true_cost_ms(folder: Path, fault: Fault) -> float | None:
    """Return the true cost per step by the job's own clock."""
    if fault.truth is None:
        return None
    ranks = range(fault.ranks)
    if fault.truth == "injected":
        return max(_mean_ms(folder / TARGET, rank, fault.truth) for rank in ranks)
    if fault.truth == "samples":
        return statistics.mean(_longer_for_as_many_samples(folder, rank) for rank in ranks)
    return statistics.mean(
        _mean_ms(folder / TARGET, rank, fault.truth) - _mean_ms(folder / BASE, rank, fault.truth)
        for rank in ranks
    )


def _mean_ms(side: Path, rank: int, truth: str) -> float:
    parts, of_all = truth.removeprefix(OVER_ALL).split(), truth.startswith(OVER_ALL)
    return statistics.mean(
        sum(step.get(part, 0.0) for part in parts)
        for step in _own_steps(side, rank)
        if of_all or not step["starts_epoch"]
    )


def _longer_for_as_many_samples(folder: Path, rank: int) -> float:
    (base_ms, base_samples), (target_ms, target_samples) = (
        [
            statistics.mean(step[part] for step in _own_steps(folder / side, rank))
            for part in ("step", "samples")
        ]
        for side in (BASE, TARGET)
    )
    return target_ms / target_samples * base_samples - base_ms


def _own_steps(side: Path, rank: int) -> list[dict[str, float]]:
    steps: list[dict[str, float]] = json.loads((side / f"own{rank}.json").read_text())
    return steps[WARM_UP:]


# -- the document --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """The figures of one variant of the job."""

    single: int
    top_1: float
    top_3: float
    cost_error: float | None
    costs: int
    together: int
    together_top_1: float
    together_top_3: float
    healthy: int
    quiet: float


def summarize(scores: Sequence[Score]) -> Summary:
    single = [score for score in scores if len(score.places) == 1]
    together = [score for score in scores if len(score.places) > 1]
    healthy = [score for score in scores if score.fault.healthy]
    errors = [score.cost_error for score in single if score.cost_error is not None]
    return Summary(
        single=len(single),
        top_1=_share([score.top_1 for score in single]),
        top_3=_share([score.top_3 for score in single]),
        cost_error=statistics.median(errors) if errors else None,
        costs=len(errors),
        together=len(together),
        together_top_1=_share([score.top_1 for score in together]),
        together_top_3=_share([score.top_3 for score in together]),
        healthy=len(healthy),
        quiet=_share([not score.causes for score in healthy]),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def as_text(scores: Sequence[Score]) -> str:
    """Return the score for a terminal: each pair, then the figures."""
    rows = [
        ["variant", "pair", "true", "named", "first", "place", "findings"],
        *(_line(score) for score in scores),
    ]
    variants = dict.fromkeys(score.variant for score in scores)
    return "\n".join(
        [
            table(rows),
            *(
                f"{variant}: {summarize([score for score in scores if score.variant == variant])}"
                for variant in variants
            ),
        ]
    )


def _line(score: Score) -> list[str]:
    said = ", ".join(f"{each.kind} {_ms(each.cost_ms)}" for each in score.causes)
    places = ", ".join("-" if place is None else str(place + 1) for place in score.places)
    return [
        score.variant[:3],
        score.fault.name,
        _ms(score.true_ms),
        _ms(score.named_ms),
        score.first,
        places,
        said,
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def as_document(scores: Sequence[Score], *, has_gpu: bool) -> str:
    """Return the content of docs/accuracy.md."""
    return (
        "\n\n".join(
            [
                *_opening(scores, has_gpu=has_gpu),
                *_figures(scores),
                *_wrong(scores),
                *_pairs(scores),
                *_confusion(scores),
                *_left_out(scores, has_gpu=has_gpu),
            ]
        )
        + "\n"
    )


def _opening(scores: Sequence[Score], *, has_gpu: bool) -> Iterator[str]:
    environment = read_environment()
    packages = ", ".join(
        f"{name} {version}"
        for name, version in environment["packages"].items()
        if name in {"torch", "paddlepaddle", "pyarrow"}
    )
    trials = Counter((score.variant, score.trial) for score in scores)
    told = ", ".join(
        f"{variant} {sum(1 for each, _ in trials if each == variant)}"
        for variant in dict.fromkeys(score.variant for score in scores)
    )
    yield "# Accuracy: how often profkit names the right cause"
    yield (
        "We inject faults with a known cause into small training jobs. Each pair is a job and "
        "its twin, which differ in one option of the job. profkit sees only the two traces. The "
        "job's own clock measures the true cost of the fault. `make accuracy` runs the missing "
        "pairs and writes this page. `benchmarks/faults` contains the jobs, the faults and the "
        "score."
    )
    today = dt.date.today().isoformat()  # noqa: DTZ011  # the machine's own day
    version = importlib.metadata.version("profkit")
    yield (
        f"Run {_when(scores)}; written {today}, profkit {version}, "
        f"Python {platform.python_version()}, {packages}; "
        f"{environment['cpu']}, {os.cpu_count()} cores, {'a' if has_gpu else 'no'} GPU, "
        f"load average {os.getloadavg()[2]:.1f} over the last 15 minutes. "
        f"Trials of each pair: {told}. "
        "The jobs have priority over other work on the machine. If `host_busy` appears next to "
        "an injected cause, other work still used CPUs."
    )
    yield (
        "The held-out job has other images, another model and batch size, and longer waits in "
        "faults that wait. We changed two rules after we had seen the held-out results, so the "
        "held-out score of these two is not blind. In short runs, the number of garbage "
        "collections now determines the certainty of `garbage_pauses`. `amp_without_effect` is "
        "now reported even if its cost is uncertain. We fixed all other rules beforehand. In the "
        "development job, we made faults without a measurable cost stronger. We set the limits "
        "of the rules with the healthy pairs of that job in view."
    )


def _when(scores: Sequence[Score]) -> str:
    times = [score.at for score in scores if score.at]
    return f"{min(times)} to {max(times)} UTC" if times else "at times that nobody noted"


def _figures(scores: Sequence[Score]) -> Iterator[str]:
    yield "## Results"
    head = [
        "",
        "goal",
        *(
            variant
            for variant in (DEVELOPMENT, HELD_OUT)
            if any(score.variant == variant for score in scores)
        ),
    ]
    found = [
        summarize([score for score in scores if score.variant == variant]) for variant in head[2:]
    ]
    lines = [
        [
            "single faults whose cause is named first",
            f"{GOALS['top-1']:.0%}",
            *(f"{each.top_1:.0%} of {each.single}" for each in found),
        ],
        [
            "single faults whose cause is among the first three",
            f"{GOALS['top-3']:.0%}",
            *(f"{each.top_3:.0%} of {each.single}" for each in found),
        ],
        [
            "error of the cause's cost, median",
            f"{GOALS['cost error']:.0%}",
            *(
                f"{each.cost_error:.0%} of {each.costs}" if each.cost_error is not None else "-"
                for each in found
            ),
        ],
        [
            "healthy pairs without a cause",
            f"{GOALS['quiet']:.0%}",
            *(f"{each.quiet:.0%} of {each.healthy}" for each in found),
        ],
        [
            "two faults together: one of them is named first",
            "-",
            *(f"{each.together_top_1:.0%} of {each.together}" for each in found),
        ],
        [
            "two faults together: both are among the first three",
            "-",
            *(f"{each.together_top_3:.0%} of {each.together}" for each in found),
        ],
    ]
    yield _markdown([head, *lines])


def _wrong(scores: Sequence[Score]) -> Iterator[str]:
    """Yield every error, one line each."""
    yield "## Errors"
    wrong = [
        score
        for score in scores
        if (score.fault.healthy and score.causes)
        or (not score.fault.healthy and not (score.top_1 and score.top_3))
    ]
    lines = [
        f"- {score.variant}, trial {score.trial}, `{score.fault.name}`: {_complaint(score)}"
        for score in wrong
    ]
    far = [
        score
        for score in scores
        if score.cost_error is not None and score.cost_error > GOALS["cost error"]
    ]
    costs = [
        (
            f"- {score.variant}, trial {score.trial}, `{score.fault.name}`: "
            f"{_ms(score.named_ms)} ms named, {_ms(score.true_ms)} ms true"
        )
        for score in far
    ]
    yield (
        "\n".join(lines) or "Every injected cause is named first, and healthy pairs have no cause."
    )
    yield f"Costs that are off by more than {GOALS['cost error']:.0%}:"
    yield "\n".join(costs) or "none."


def _complaint(score: Score) -> str:
    said = (
        ", ".join(f"{each.kind} ({_ms(each.cost_ms)} ms)" for each in score.causes[:TOP])
        or "nothing"
    )
    if score.fault.healthy:
        return f"reports {said}, but nothing is wrong"
    missing = [
        kinds[0]
        for kinds, place in zip(score.fault.causes, score.places, strict=True)
        if place is None or place >= TOP
    ]
    return f"reports {said}" + (
        f"; {' and '.join(missing)} is not among the first three" if missing else ""
    )


def _pairs(scores: Sequence[Score]) -> Iterator[str]:
    yield "## All faults"
    head = [
        "fault",
        "job",
        "injected",
        "right cause",
        "variant",
        "named first",
        "true cost, ms",
        "named cost, ms",
    ]
    faulty = [score for score in scores if not score.fault.healthy]
    rows = [
        [
            f"`{score.fault.name}`",
            f"{score.fault.framework}, {score.fault.ranks}",
            as_words(score.fault),
            " and ".join(kinds[0] for kinds in score.fault.causes),
            score.variant,
            score.first,
            _ms(score.true_ms),
            _ms(score.named_ms),
        ]
        for score in faulty
    ]
    yield _markdown([head, *rows])


def _confusion(scores: Sequence[Score]) -> Iterator[str]:
    """Yield the table of first causes for each fault that was injected alone."""
    yield "## Confusion"
    single = [score for score in scores if len(score.places) <= 1]
    said = Counter(
        (_planted(score), score.first if score.first not in _right(score) else _planted(score))
        for score in single
    )
    columns = sorted({column for _, column in said}, key=lambda name: (name == NOTHING, name))
    rows = sorted({row for row, _ in said}, key=lambda name: (name == NOTHING, name))
    yield (
        "One row per injected cause, one column per cause that profkit names first. Healthy "
        "pairs are in the last row."
    )
    yield _markdown(
        [
            ["injected", *columns],
            *([row, *(str(said[row, column] or "") for column in columns)] for row in rows),
        ]
    )


def _planted(score: Score) -> str:
    return score.fault.causes[0][0] if score.fault.causes else NOTHING


def _right(score: Score) -> tuple[str, ...]:
    return score.fault.causes[0] if score.fault.causes else (NOTHING,)


def _left_out(scores: Sequence[Score], *, has_gpu: bool) -> Iterator[str]:
    yield "## Not injected on this machine"
    run = {(score.variant, score.fault.name) for score in scores}
    reasons = [(fault, why_not(fault, has_gpu=has_gpu)) for fault in FAULTS]
    lines = [
        f"- `{fault.name}` ({as_words(fault)}): {reason}" for fault, reason in reasons if reason
    ]
    missing = [
        f"- `{fault.name}`, {variant}: not run"
        for variant in dict.fromkeys(score.variant for score in scores)
        for fault, reason in reasons
        if not reason and (variant, fault.name) not in run
    ]
    yield "\n".join([*lines, *missing])


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *lines = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *lines])
