"""What to try first in one run: a remedy for its largest loss, and what it would give."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.analysis.overview import Overview
from profkit.explain.named import LATE_RANK, REMEDIES
from profkit.explain.predict.prediction import WORKERS, Prediction
from profkit.frame.costs import EVALUATION, OUTLIER
from profkit.frame.device_times import PhaseClock
from profkit.frame.phases import UNKNOWN
from profkit.frame.selection import COMPILING, EPOCH_START
from profkit.report.device_sections import idle_words
from profkit.report.exchange_sections import late_words
from profkit.text import significant
from profkit.vocab import Phase

LEAST_SHARE = 0.05
"""A smaller loss is not worth a remedy."""

PIN, OVERLAP = (
    "pin the batches (pin_memory=True) and copy them with non_blocking=True",
    "copy the next batch on a stream of its own while this one is trained on",
)
LAUNCH_LESS = (
    "launch less: fused operators, a compiler (torch.compile, paddle.jit.to_static), CUDA graphs, "
    "larger batches"
)

_REMEDIES = {
    Phase.DATA.value: REMEDIES["input_bound"],
    Phase.ALLREDUCE.value: REMEDIES["exposed_communication"],
    Phase.OTHER.value: REMEDIES["evaluation_in_training"],
    Phase.COMPILE.value: "compile less often: batches of few shapes, or dynamic ones",
    UNKNOWN: REMEDIES["time_outside_phases"],
    EPOCH_START: "keep the loader's workers between epochs (persistent_workers=True)",
    EVALUATION: REMEDIES["evaluation_in_training"],
    COMPILING: "compile less often: batches of few shapes, or dynamic ones",
    OUTLIER: "see what happens in these steps: 'profkit tui' shows them on the timeline",
}

_CAUSES = {
    Phase.DATA.value: ("input_bound",),
    Phase.ALLREDUCE.value: ("exposed_communication",),
    LATE_RANK: (LATE_RANK,),
    Phase.OTHER.value: ("evaluation_in_training", "checkpoint_in_training"),
    UNKNOWN: ("time_outside_phases",),
}
"""The causes whose end would end a loss."""


def advice(view: Overview, answers: Sequence[Prediction]) -> str:
    """Return what to try, or nothing if no loss is worth it or nobody knows what it is."""
    if not view.times_hold or view.clock is PhaseClock.LAUNCH:
        return ""
    found = view.losses.found
    idle, _ = idle_words(view.devices)
    if idle >= LEAST_SHARE and idle > max((loss.share for loss in found), default=0.0):
        return f"try: {LAUNCH_LESS}." if view.devices and view.devices.whole.late_ns else ""
    if not found or found[0].share < LEAST_SHARE:
        return ""
    kind = found[0].kind
    workers = [answer for answer in answers if answer.question.kind == WORKERS]
    if kind == Phase.DATA.value and workers:
        return f"try: {_more_workers(view, workers[0])}."
    words = _REMEDIES.get(kind, "")
    if kind == Phase.H2D.value:
        words = PIN if view.config.get("pin") is False else OVERLAP
    late = view.late_rank
    if kind == Phase.ALLREDUCE.value and late is not None:
        words = f"see what only rank {late.rank} does: it is late{late_words(late)}"
        kind = LATE_RANK
    if not words:
        return ""
    return f"try: {words}{_gain(kind, answers)}."


def _more_workers(view: Overview, answer: Prediction) -> str:
    """Return how many workers hide the loader, and what a batch costs now."""
    words = answer.question.words
    now = view.config.get("workers")
    if isinstance(now, int):
        words += f" instead of {now}"
    if answer.rests_on:
        words += f" ({answer.rests_on[0].partition(',')[0]})"
    return words + _about(answer)


def _gain(kind: str, answers: Sequence[Prediction]) -> str:
    for answer in answers:
        if answer.question.cause in _CAUSES.get(kind, ()):
            return _about(answer)
    return ""


def _about(answer: Prediction) -> str:
    """Return what a change gives by the best guess."""
    gain = answer.speed_up
    if gain is None or gain.value <= 1:
        return ""
    words = f"; about {significant(gain.value)} times the throughput"
    if answer.question.cause == LATE_RANK:
        words += " if it were as fast as the others"
    return words if answer.conclusive else f"{words} (inconclusive)"
