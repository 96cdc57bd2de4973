"""Real trainers with and without a callback: their steps, samples, phases and losses."""

from __future__ import annotations

import re

import numpy as np
import pyarrow.compute as pc
import pytest

from profkit.frame.phases import UNKNOWN, step_times
from profkit.frame.selection import select_steps
from profkit.trace import verify
from profkit.trace.reader import events_of
from profkit.vocab import EventKind, Integrity
from tests.callbacks.conftest import Ended, Runs, Training


def _named(training: Training, name: str) -> list[str]:
    """The phases of the outermost parts that have this name."""
    spans = training.spans.filter(
        pc.and_(pc.equal(training.spans["name"], name), pc.equal(training.spans["depth"], 0))
    )
    return list(spans["phase"].to_pylist())


def _failures(ended: Ended) -> list[str]:
    """Return profkit's own failures."""
    return list(events_of(ended.trace.events, EventKind.FAILURE)["name"].to_pylist())


def test_the_job_ends_as_it_would_without_profkit(runs: Runs) -> None:
    assert (runs.alone.code, runs.under_run.code) == (3, 3), runs.alone.err + runs.under_run.err
    assert len(runs.alone.told) == len(runs.under_run.told) == 6


def test_it_trains_to_the_bit_as_without_profkit(runs: Runs) -> None:
    for told in runs.alone.told + runs.under_run.told:
        bare = next(bare for bare in runs.bare if bare["accumulate"] == told["accumulate"])
        assert (told["losses"], told["steps"]) == (bare["losses"], bare["steps"])


def test_there_are_as_many_steps_as_the_trainer_has_counted(runs: Runs) -> None:
    assert runs.alone.trace.steps.num_rows == sum(
        told["steps"] for told in runs.alone.told if told["callbacks"]
    )
    assert runs.under_run.trace.steps.num_rows == sum(told["steps"] for told in runs.under_run.told)


def test_nothing_has_failed(runs: Runs) -> None:
    assert verify(runs.alone.runs[0]).state is Integrity.COMPLETE
    assert verify(runs.under_run.runs[0]).reasons == (
        "the run was aborted: the job ended with exit code 3",
    )
    assert not _failures(runs.under_run)


def test_callbacks_that_fail_are_counted_and_warn_once(runs: Runs) -> None:
    """Their trainings too end as those without them: see the tests above."""
    failures = _failures(runs.alone)
    assert sorted(re.findall(r"profkit: (\S+) failed", runs.alone.err)) == sorted(failures)
    assert all(site.startswith("profkit.callbacks.") for site in failures)
    assert {"begin", "start"} & {word for site in failures for word in site.split("_")}
    assert any(site.endswith("on_train_end") for site in failures)


def test_told_steps_have_the_trainers_samples_and_epochs(runs: Runs) -> None:
    for training in runs.told:
        expected = runs.job.samples[training.accumulate]
        assert training.steps["sample_count"].to_pylist() == expected
        assert training.steps["epoch"].to_pylist() == [
            step // (len(expected) // 2) for step in range(len(expected))
        ]


def test_steps_of_an_unedited_job_have_all_its_samples(runs: Runs) -> None:
    """A loader that is a batch ahead brings it a step early, at the ends of an epoch."""
    for training in runs.unedited:
        expected = runs.job.samples[training.accumulate]
        counted = training.steps["sample_count"].to_pylist()
        per_epoch = len(expected) // 2
        assert sum(counted) == sum(expected)
        assert [
            count for step, count in enumerate(counted) if 0 < step % per_epoch < per_epoch - 2
        ] == [4 * training.accumulate] * 2 * (per_epoch - 3)


def test_every_measured_step_has_all_phases(runs: Runs) -> None:
    for training in runs.unedited + runs.told:
        assert len(training.measured) >= training.step_count // 2
        for step in training.measured:
            assert training.phases(step) >= {"data", "forward", "backward", "optimizer"}, (
                training.callbacks,
                training.accumulate,
                step,
            )


def test_the_phases_close(runs: Runs) -> None:
    """Time inside another phase, as of a step inside Lightning's optimizer, counts once."""
    for training in runs.unedited + runs.told:
        used = select_steps(training.steps, warm_up=1).steps
        times = step_times(training.steps, training.spans, used[np.isin(used, training.measured)])
        parts = dict(zip(times.names, times.parts, strict=True))
        assert all((part >= 0).all() for part in parts.values()), {
            name: part.min() for name, part in parts.items()
        }
        assert all(parts[phase].all() for phase in ("data", "forward", "backward", "optimizer"))
        assert UNKNOWN in parts


def test_losses_are_the_trainers_own(runs: Runs) -> None:
    for training in runs.unedited + runs.told:
        if training.accumulate == 1:
            recorded = training.steps["loss"].to_pylist()
            assert all(
                loss in {None, own} for loss, own in zip(recorded, training.losses, strict=True)
            )
            assert sum(loss is not None for loss in recorded) >= len(training.measured)


def test_what_is_no_training_is_other_and_has_its_name(runs: Runs) -> None:
    for training in runs.told:
        for name in ("evaluation", "checkpoint"):
            assert set(_named(training, name)) == {"other"}, (name, training.accumulate)
    for training in runs.unedited:
        assert set(_named(training, "evaluation")) == {"other"}


def test_a_batch_of_an_evaluation_is_no_data(runs: Runs) -> None:
    for training in runs.unedited + runs.told:
        rows = training.spans.to_pylist()
        asides = [(row["start_ns"], row["end_ns"]) for row in rows if row["name"] == "evaluation"]
        inside = [
            row
            for row in rows
            if row["thread"] == "MainThread"
            and any(start <= row["start_ns"] and row["end_ns"] <= end for start, end in asides)
        ]
        assert {row["phase"] for row in inside} == {"other"}


def test_trainers_that_log_show_it(runs: Runs) -> None:
    if "paddle" not in runs.job.script:
        assert all(set(_named(training, "logging")) == {"other"} for training in runs.told)


def test_a_step_of_several_batches_has_the_loss_of_all(runs: Runs) -> None:
    join = np.sum if "huggingface" in runs.job.script else np.mean
    for training in (training for training in runs.told if training.accumulate == 2):
        per_epoch = len(training.losses) // 2
        epochs = [training.losses[:per_epoch], training.losses[per_epoch:]]
        pairs = [epoch[start : start + 2] for epoch in epochs for start in range(0, per_epoch, 2)]
        for recorded, pair in zip(training.steps["loss"].to_pylist(), pairs, strict=True):
            assert recorded is None or recorded == pytest.approx(float(join(pair)))


def test_the_callback_is_of_the_lightning_that_the_job_has_imported(runs: Runs) -> None:
    if "lightning" in runs.job.script:
        assert "callbacks are those of lightning.pytorch" in runs.alone.out
        assert "callbacks are those of pytorch_lightning" in runs.under_run.out
