"""The answers about one run: of settings that can be turned, and of its causes."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profkit.explain.predict.alone import shown_alone
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import (
    BATCH,
    FASTER,
    LINK,
    OVERLAP,
    RANKS,
    WITHOUT,
    WORKERS,
    Prediction,
    Question,
)
from profkit.explain.predict.some_ranks import MOST_RANKS, USUAL_COUNTS
from profkit.vocab import EXPERIMENT_FACTOR

LINKS = (0.25, 0.5, 2.0, 3.0, 4.0, 8.0, 16.0)
MOST_WORKERS, MOST_SAMPLES = 64, 1 << 20


def answer_all(job: Job) -> list[Prediction]:
    """Return the answers that a run can give by itself, the largest gain first."""
    answers = []
    for phase in job.evidence.experiments:
        answers.append(ask(job, Question(FASTER, float(EXPERIMENT_FACTOR), cause=phase)))
    for kind in shown_alone(job):
        answers.append(ask(job, Question(WITHOUT, cause=kind)))
    if job.model is not None and job.model.members:
        answers += [ask(job, Question(LINK, 2.0)), ask(job, Question(OVERLAP))]
    return sorted(answers, key=lambda each: each.step_ns.value if each.step_ns else 0.0)


@dataclass(frozen=True)
class Setting:
    """A setting of the job: its recorded value, and the values that it can be turned to."""

    kind: str
    recorded: float
    values: tuple[float, ...]

    def next_value(self, now: float, by: int) -> float:
        """Return the next value above or below one, or that one if there is none."""
        if by > 0:
            place = bisect.bisect_right(self.values, now)
        else:
            place = bisect.bisect_left(self.values, now) - 1
        return self.values[place] if 0 <= place < len(self.values) else now


@dataclass(frozen=True, eq=False)
class Board:
    """The answers about one run; those about settings come first, in the order of `settings`."""

    job: Job
    settings: tuple[Setting, ...]
    answers: tuple[Prediction, ...]

    def turn(self, row: int, by: int) -> Board:
        """Return the board with the setting of a row turned up or down, if the row has one."""
        if row >= len(self.settings):
            return self
        setting, now = self.settings[row], self.answers[row].question.value
        value = setting.next_value(now, by)
        if value == now:
            return self
        answers = [*self.answers]
        answers[row] = ask(self.job, Question(setting.kind, value))
        return dataclasses.replace(self, answers=tuple(answers))


def open_board(job: Job) -> Board:
    """Return the board of a run, with each setting one turn up."""
    settings = tuple(_settings(job))
    answers = []
    for setting in settings:
        value = setting.next_value(setting.recorded, 1)
        answers.append(ask(job, Question(setting.kind, value)))
    turned = {LINK} & {setting.kind for setting in settings}
    for answer in answer_all(job):
        if answer.question.kind not in turned:
            answers.append(answer)
    return Board(job, settings, tuple(answers))


def _settings(job: Job) -> Iterator[Setting]:
    """Yield the settings that the run has, without their recorded values."""
    manifest, model = job.evidence.trace.manifest, job.model
    if model is not None and model.loaders:
        yield _setting(WORKERS, model.loaders[0].workers, range(MOST_WORKERS + 1))
    if model is not None and model.members:
        yield Setting(LINK, 1.0, LINKS)
    counts = {*USUAL_COUNTS, 2 * manifest.world_size}
    yield _setting(RANKS, manifest.world_size, sorted(counts & {*range(MOST_RANKS + 1)}))
    if samples := job.evidence.step_samples:
        sizes = [samples * 2.0**turn for turn in range(-6, 7)]
        whole = [size for size in sizes if size.is_integer() and 1 <= size <= MOST_SAMPLES]
        yield _setting(BATCH, samples, whole)


def _setting(kind: str, recorded: float, values: Sequence[float]) -> Setting:
    others = tuple(float(value) for value in values if value != recorded)
    return Setting(kind, float(recorded), others)
