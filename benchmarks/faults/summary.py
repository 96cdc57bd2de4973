"""The figures of a variant, and the score for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scoring import Score

from profkit.text import table


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
    said = ", ".join(f"{each.kind} {ms(each.cost_ms)}" for each in score.causes)
    places = ", ".join("-" if place is None else str(place + 1) for place in score.places)
    return [
        score.variant[:3],
        score.fault.name,
        ms(score.true_ms),
        ms(score.named_ms),
        score.first,
        places,
        said,
    ]


def ms(value: float | None) -> str:
    """Return milliseconds, or a dash for what is not known."""
    return "-" if value is None else f"{value:.1f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table, the first of them as its head."""
    head, *lines = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *lines])
