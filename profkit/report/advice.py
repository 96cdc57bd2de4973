"""What to try first in one run: a remedy for its largest loss, and what it would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from profkit.analysis.overview import Overview
from profkit.analysis.views.loader import WorkersModel, build_loader_view
from profkit.errors import UnreadableError, UsageError
from profkit.explain.named import LATE_RANK, REMEDIES
from profkit.explain.predict.ask import MOST_WORKERS, answer_all
from profkit.explain.predict.job import read_job
from profkit.explain.predict.prediction import Prediction
from profkit.frame.costs import EVALUATION, OUTLIER
from profkit.frame.device_times import PhaseClock
from profkit.frame.notices import is_log
from profkit.frame.phases import UNKNOWN
from profkit.frame.selection import COMPILING, EPOCH_START
from profkit.report.device_sections import idle_words
from profkit.report.exchange_sections import late_words
from profkit.text import duration, percent, plural, shell_word, significant
from profkit.trace import Trace
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

MAX_NO_CORE_SHARE = 0.25
"""If workers wait longer than this for a core, more of them would wait, too."""

_PIECES = {"read": "reading", "decode": "decoding", "collate": "collating"}
BY_PIECE = {
    "read": "put the data on a faster disk or in memory, and use more loader workers",
    "decode": "decode elsewhere (DALI) or before the training, and use more loader workers",
    "collate": "collate less: smaller or fixed shapes; and use more loader workers",
}

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


class Answers(NamedTuple):
    """What a run predicts of itself, and the model of its loader."""

    predictions: Sequence[Prediction] = ()
    loader: WorkersModel | None = None
    piece: str = ""
    """The largest piece of making a batch."""


def find_answers(trace: Trace) -> Answers:
    """Return what a run predicts by itself; nothing of a log, whose lines are means."""
    if is_log(trace):
        return Answers()
    try:
        predictions = tuple(answer_all(read_job(trace)))
    except (UnreadableError, UsageError):  # no step can be used, or nothing is to be said
        predictions = ()
    view = build_loader_view(trace)
    if view.model is None or view.unexplained_ns:
        return Answers(predictions)
    pieces = dict.fromkeys(_PIECES, 0.0)
    for maker in view.makers:
        for piece in pieces:
            pieces[piece] += maker.batches * getattr(maker, f"{piece}_ns")
    return Answers(predictions, view.model, max(pieces, key=pieces.__getitem__))


def advice(view: Overview, answers: Answers) -> str:
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
    words, late = _REMEDIES.get(kind, ""), view.late_rank
    if kind == Phase.H2D.value:
        words = PIN if view.config.get("pin") is False else OVERLAP
    elif kind == Phase.DATA.value and answers.loader is not None:
        words = _for_loader(answers.loader, answers.piece)
    elif kind == Phase.DATA.value and "imported_from" not in view.config:
        run = shell_word(str(view.path))
        words = f"see what the loader does: 'profkit tui {run} --screen loader'"
    elif kind == Phase.ALLREDUCE.value and late is not None:
        words = f"see what only rank {late.rank} does: it is late{late_words(late)}"
        kind = LATE_RANK
    if not words:
        return ""
    return f"try: {words}{_gain(kind, answers.predictions)}."


def making_words(model: WorkersModel, piece: str = "") -> str:
    """Return how fast batches are made, and how fast they are used."""
    makes = "the loop makes"
    if model.workers == 1:
        makes = "1 worker makes"
    elif model.workers:
        makes = f"{plural(model.workers, 'worker')} make"
    every = f"{makes} a step's batches every {duration(model.now.delivery_ns)}{piece}"
    return f"{every}, and the rest of a step takes {duration(model.rest_ns)}"


def _for_loader(model: WorkersModel, piece: str) -> str:
    """Return how to hide a loader, or what to make faster if workers alone cannot."""
    making = making_words(model, f", most of it {_PIECES[piece]}")
    if model.no_core_share > MAX_NO_CORE_SHARE:
        share = percent(model.no_core_share, 0)
        return f"give the loader cores: {share} of making a batch waits for one; {making}"
    if model.enough and model.workers < model.enough <= MOST_WORKERS:
        return f"{plural(model.enough, 'loader worker')} per rank: {making}"
    return f"{BY_PIECE[piece]}: {making}"


def _gain(kind: str, answers: Sequence[Prediction]) -> str:
    """Return what a change gives by the best guess."""
    for answer in answers:
        gain = answer.speed_up
        if answer.question.cause not in _CAUSES.get(kind, ()) or gain is None or gain.value <= 1:
            continue
        words = f"; without this loss, about {significant(gain.value)} times the throughput"
        return words if answer.conclusive else f"{words} (inconclusive)"
    return ""
