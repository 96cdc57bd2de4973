"""A prediction is scored only by runs that began after it was made, and rests on none of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from profkit.analysis.estimate import Estimate
from profkit.cli import main
from profkit.explain.predict.ask import ask
from profkit.explain.predict.prediction import AMP, BATCH, DALI, RANKS, WITHOUT, WORKERS, Question
from profkit.explain.predict.record import keep, read_record
from profkit.explain.predict.scoring import is_change_made, score_record
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import RunManifest, Trace
from profkit.vocab import RECORD
from tests.predict.test_answers import LATE, job_of
from tests.predict.test_record import predicted, touch

LATER_S = 60


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / RECORD).read_text().splitlines()]


def test_a_run_from_before_the_prediction_does_not_score_it(tmp_path: Path) -> None:
    predicted(tmp_path, WITHOUT, cause="late_rank")
    twin = synthetic_trace(tmp_path / "twin", ranks=2, config={"workers": 2})
    touch(twin, -LATER_S)
    content = json.loads((tmp_path / "late" / "run.json").read_text())
    assert json.loads((twin / "run.json").read_text())["created_ns"] > content["created_ns"]
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None
    touch(twin, LATER_S)
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is not None


@pytest.mark.parametrize("later_s", [-LATER_S, LATER_S])
def test_a_run_that_the_prediction_rests_on_does_not_score_it(tmp_path: Path, later_s: int) -> None:
    """Not even if the clock of its machine is ahead."""
    slow = synthetic_trace(tmp_path / "slow", ranks=2, rank_phase_ns=LATE, config={"workers": 2})
    fast = synthetic_trace(tmp_path / "fast", ranks=2, config={"workers": 2})
    touch(fast, later_s)
    words = ["whatif", str(slow), "--base", str(fast), "--without", "late_rank"]
    assert main(words) == 0
    assert main(words) == 0, "the second one looks for runs that score the first"
    (entry,) = score_record(tmp_path / RECORD, tmp_path)
    assert entry.measured_ns is None
    other = synthetic_trace(tmp_path / "other", ranks=2, config={"workers": 2}, seed=5)
    touch(other, 2 * LATER_S)
    assert score_record(tmp_path / RECORD, tmp_path)[0].scored_run == "other"


def test_the_size_of_the_base_is_no_prediction_that_the_base_meets(tmp_path: Path) -> None:
    base, run = (
        synthetic_trace(tmp_path / str(size), batch_size=size, phase_ns={"forward": size * 10**6})
        for size in (16, 32)
    )
    touch(base, -LATER_S)
    answer = ask(job_of(run), Question(BATCH, 16.0), job_of(base))
    assert keep(answer, Trace.open(run), tmp_path / RECORD, Trace.open(base)) == ""
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None


def test_equal_questions_with_other_bases_are_other_predictions(tmp_path: Path) -> None:
    answer = predicted(tmp_path, WITHOUT, cause="late_rank")
    run = Trace.open(tmp_path / "late")
    for seed in (1, 2):
        base = Trace.open(synthetic_trace(tmp_path / f"base{seed}", ranks=2, seed=seed))
        keep(answer, run, tmp_path / RECORD, base)
        keep(answer, run, tmp_path / RECORD, base)
    assert len(read_record(tmp_path / RECORD)) == 3


def test_a_prediction_that_was_scored_stays_if_it_is_asked_for_again(tmp_path: Path) -> None:
    answer = predicted(tmp_path, WITHOUT, cause="late_rank")
    twin = synthetic_trace(tmp_path / "twin", ranks=2, config={"workers": 2})
    touch(twin, LATER_S)
    scored = score_record(tmp_path / RECORD, tmp_path)
    keep(answer, Trace.open(tmp_path / "late"), tmp_path / RECORD)
    assert score_record(tmp_path / RECORD, tmp_path) == scored
    assert scored[0].scored_run == "twin"


@pytest.mark.parametrize("created", [None, "before"])
def test_a_score_of_an_earlier_run_counts_for_nothing(tmp_path: Path, created: str | None) -> None:
    """Earlier versions wrote such scores, without the time at which the run began."""
    predicted(tmp_path, WITHOUT, cause="late_rank")
    (line,) = lines_of(tmp_path)
    score = {"scored": line["prediction"], "run": "twin", "measured_ns": 1.0}
    if created:
        score["run_created_ns"] = line["at_ns"]
    with open(tmp_path / RECORD, "a") as file:
        file.write(json.dumps(score) + "\n")
    assert read_record(tmp_path / RECORD)[0].measured_ns is None


@pytest.mark.parametrize(
    ("kind", "first", "changed", "is_scored"),
    [
        (DALI, {"loader": "torch DataLoader"}, {"loader": "DALI (GPU)"}, True),
        (DALI, {}, {"dali": "True"}, True),
        (DALI, {}, {"dali": True, "workers": None, "prefetch": None}, True),
        (DALI, {"dali": "True"}, {"dali": "False"}, False),
        (DALI, {"dali": "False"}, {"dali": "0"}, False),
        (DALI, {"loader": "torch DataLoader"}, {"loader": "DALI (GPU)", "workers": 8}, False),
        (DALI, {}, {"workers": 8}, False),
        (DALI, {}, {"prefetch": 4}, False),
        (DALI, {"loader": "torch DataLoader"}, {"loader": "none"}, False),
        (AMP, {"precision": "fp32"}, {"precision": "amp"}, True),
        (AMP, {"precision": "fp32"}, {"precision": "bf16"}, True),
        (AMP, {"amp": False}, {"amp": "O1"}, True),
        (AMP, {"precision": "fp32"}, {"precision": "fp64"}, False),
        (AMP, {"precision": "fp64"}, {"precision": "fp32"}, False),
        (AMP, {"precision": "fp32"}, {"precision": None}, False),
        (AMP, {"precision": "amp"}, {"precision": "fp32"}, False),
        (AMP, {"precision": "fp32"}, {"precision": "amp", "workers": 8}, False),
        (WORKERS, {}, {"workers": 8}, True),
        (WORKERS, {}, {"workers": 8, "prefetch": 16}, False),
        (WORKERS, {"workers": 0, "prefetch": None}, {"workers": 8, "prefetch": 2}, True),
        (WORKERS, {}, {"workers": 8, "persistent_workers": True}, False),
    ],
)
def test_a_run_scores_a_question_about_one_setting_if_it_made_that_change(
    tmp_path: Path,
    kind: str,
    first: dict[str, object],
    changed: dict[str, object],
    is_scored: bool,
) -> None:
    config = {"workers": 2, "prefetch": 2, "amp": None, "persistent_workers": False, **first}
    run = synthetic_trace(tmp_path / "run", config=config)
    step = Estimate(1.0, 0.5, 2.0)
    answer = dataclasses.replace(job_of(run).answer(Question(kind, 8.0)), step_ns=step)
    keep(answer, Trace.open(run), tmp_path / RECORD)
    later = synthetic_trace(tmp_path / "later", config=config)
    touch(later, LATER_S, **changed)
    (entry,) = score_record(tmp_path / RECORD, tmp_path)
    assert (entry.measured_ns is not None) is is_scored


PYTHON = ["python", "train.py"]
TORCHRUN = ["torchrun", "--nproc-per-node"]


@pytest.mark.parametrize(
    ("kind", "commands", "changed", "is_scored"),
    [
        (WORKERS, ([*PYTHON, "--workers", "2"], [*PYTHON, "--workers", "8"]), {"workers": 8}, True),
        (WORKERS, (PYTHON, ["python", "/other/train.py", "-j8"]), {"workers": 8}, True),
        (WORKERS, (PYTHON, ["python", "tune.py", "--workers", "8"]), {"workers": 8}, False),
        (WORKERS, (PYTHON, [*PYTHON, "-j8", "--size=9"]), {"workers": 8, "size": 9}, False),
        (WORKERS, (PYTHON, [*PYTHON, "--size=9"]), {}, False),
        (WORKERS, (["./train", "-j2"], ["./train", "-j8"]), {"workers": 8}, True),
        (AMP, (PYTHON, [*PYTHON, "--amp"]), {"precision": "amp"}, True),
        (RANKS, ([*TORCHRUN, "4", "a.py"], [*TORCHRUN, "8", "a.py"]), {"world_size": 8}, True),
        (RANKS, (PYTHON, [*TORCHRUN, "8", "train.py"]), {"world_size": 8}, True),
    ],
)
def test_the_change_is_among_the_words_of_the_command(
    kind: str, commands: tuple[list[str], list[str]], changed: dict[str, object], is_scored: bool
) -> None:
    """A flag is the usual way to make a change; what it changes is recorded as well."""
    first, later = (RunManifest("job", config={"command": words}) for words in commands)
    world_size = changed.pop("world_size", 1)
    assert isinstance(world_size, int)
    later = dataclasses.replace(later, world_size=world_size, config={**later.config, **changed})
    assert is_change_made({"kind": kind, "value": 8.0}, first, later) is is_scored


def test_more_ranks_that_share_the_same_batch_score_nothing(tmp_path: Path) -> None:
    """The answer is about ranks that have as many samples each as before."""
    config = {"batch_size": None}
    run = synthetic_trace(tmp_path / "run", ranks=2, config=config)
    answer = ask(job_of(run), Question(RANKS, 4.0))
    keep(answer, Trace.open(run), tmp_path / RECORD)
    shared = synthetic_trace(tmp_path / "shared", ranks=4, batch_size=16, config=config)
    touch(shared, LATER_S)
    assert score_record(tmp_path / RECORD, tmp_path)[0].measured_ns is None
    own = synthetic_trace(tmp_path / "own", ranks=4, config={**config, "global_batch_size": 128})
    touch(own, 2 * LATER_S)
    assert score_record(tmp_path / RECORD, tmp_path)[0].scored_run == "own"


def predicted_workers(folder: Path, record: Path) -> None:
    run = synthetic_trace(folder / "run", config={"workers": 2})
    step = Estimate(1.0, 0.5, 2.0)
    answer = dataclasses.replace(job_of(run).answer(Question(WORKERS, 8.0)), step_ns=step)
    keep(answer, Trace.open(run), record)
    for name, later_s in (("b", LATER_S), ("c", 2 * LATER_S)):
        touch(synthetic_trace(folder / name, config={"workers": 8}), later_s)


@pytest.mark.parametrize("configured", [None, "kept.jsonl"])
def test_the_first_later_run_scores_whichever_is_reported_first(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    configured: str | None,
) -> None:
    """Nobody can choose the run that a prediction is compared with."""
    folder = tmp_path / "runs"
    record = tmp_path / configured if configured else folder / RECORD
    if configured:
        monkeypatch.setenv("PROFKIT_PREDICTIONS", str(record))
    folder.mkdir()
    predicted_workers(folder, record)
    assert main(["report", str(folder / "run")]) == 0
    assert read_record(record)[0].measured_ns is None, "it is not about the change"
    assert main(["report", str(folder / "c")]) == 0
    assert read_record(record)[0].scored_run == "b"
    assert "was predicted" not in capsys.readouterr().err
    assert main(["report", str(folder / "b")]) == 0
    assert "8 loader workers per rank was predicted from run: " in capsys.readouterr().err
