"""Checkpoints: a run that continues from one is the run that was not interrupted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.workloads.training.checkpoints import Checkpoints, Progress, find_checkpoints
from profkit.workloads.training.loop import Plan, Training
from profkit.workloads.training.samples import BadSamples
from profkit.workloads.training.target import Target
from tests.warm import warm_python
from tests.workloads.test_shared_loop import FakeDriver

SETTINGS = {
    "workload": "w", "framework": "torch", "precision": "fp32", "world_size": 1, "rank": 0,
    "batch_size": 2, "image_size": 32, "data": "generated",
}  # fmt: skip
PATIENCE_S = 300


def write(state: Any, path: str) -> None:
    Path(path).write_text(json.dumps(state))


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


def checkpoints(folder: Path, **options: Any) -> Checkpoints:
    config = {**SETTINGS, **options.pop("config", {})}
    return Checkpoints(folder, config=config, read=read, write=write, **options)


def train(driver: Any, plan: Plan, saving: Checkpoints) -> tuple[Any, list[tuple[int, float]]]:
    told: list[tuple[int, float]] = []
    training = Training(
        driver,
        plan,
        BadSamples(),
        lambda step, steps, loss: told.append((step, loss)),
        checkpoints=saving,
    )
    return training.run(), told


def test_a_run_continues_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    losses = [1 / (step + 1) for step in range(20)]
    target = Target.parse("loss<0.09x")
    plan = Plan(20, until=target)
    whole, told = train(FakeDriver(losses, 4), plan, Checkpoints())
    train(FakeDriver(losses, 4), Plan(6), checkpoints(tmp_path, every=3))
    assert [path.name for path in find_checkpoints(tmp_path)] == ["step-00000003", "step-00000006"]
    resumed = checkpoints(tmp_path / "next", resume=tmp_path)
    continued, rest = train(FakeDriver([], 4), plan, resumed)
    assert rest == told[6:]
    assert continued.steps == whole.steps - 6
    assert continued.last_loss == whole.last_loss
    assert continued.remarks[0] == "continued from a checkpoint at step 6"


def test_time_to_a_target_counts_the_time_before_the_checkpoint(tmp_path: Path) -> None:
    saving = checkpoints(tmp_path)
    saving.save(FakeDriver([1.0] * 8), Progress(steps=4, elapsed_s=1000.0, recent_losses=[1.0]))
    target = Target.parse("top1>0.05", ("top1",))
    outcome, _ = train(
        FakeDriver([]),
        Plan(8, until=target, evaluate=True, evaluate_every=1),
        checkpoints(tmp_path / "next", resume=tmp_path / "step-00000004"),
    )
    assert outcome.stopped.startswith("top1>0.05 reached at step 4 after 1000.")


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    train(FakeDriver([1.0] * 9, 20), Plan(9), checkpoints(tmp_path, every=2))
    assert [path.name for path in find_checkpoints(tmp_path)] == ["step-00000008", "step-00000009"]
    assert not list(tmp_path.glob(".*"))


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    driver = FakeDriver([1.0] * 4)
    checkpoints(tmp_path).save(driver, Progress(steps=4, recent_losses=[1.0]))
    with pytest.raises(UsageError, match="batch_size 2 there, 4 now"):
        checkpoints(tmp_path, resume=tmp_path, config={"batch_size": 4}).load(driver)
    with pytest.raises(UnreadableError, match="no checkpoint there"):
        checkpoints(tmp_path, resume=tmp_path / "none").load(driver)
    with pytest.raises(ProfkitError, match="at step 4, and the run ends at step 4; choose more"):
        train(driver, Plan(4), checkpoints(tmp_path / "next", resume=tmp_path))
    (tmp_path / "step-00000004" / "shared.state").write_text("torn")
    with pytest.raises(UnreadableError, match="not a whole checkpoint"):
        checkpoints(tmp_path, resume=tmp_path).load(driver)


def trace(output: Path, framework: str, *options: str) -> str:
    words = ["trace", "tsm", "--framework", framework, "--image-size", "32", "--batch-size", "2"]
    words += ["--workers", "0", "--output", str(output), *options]
    done = subprocess.run(
        [warm_python(framework), "-m", "profkit", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize(("framework", "ranks"), [("torch", ("--ranks", "2")), ("paddle", ())])
def test_a_continued_run_has_the_weights_of_an_uninterrupted_one_to_the_bit(
    framework: str, ranks: tuple[str, ...], tmp_path: Path
) -> None:
    """TSM has dropout, whose random numbers continue, and norms with running statistics.

    The run that is not interrupted leaves a checkpoint on its way, from which the other continues.
    """
    pytest.importorskip(framework)
    options = ("--checkpoint", str(tmp_path / "whole"), *ranks)
    trace(tmp_path / "traces", framework, "--steps", "4", "--checkpoint-every", "2", *options)
    middle = tmp_path / "whole" / "step-00000002"
    options = ("--checkpoint", str(tmp_path / "part"), *ranks)
    said = trace(tmp_path / "traces", framework, "--steps", "4", *options, "--resume", str(middle))
    assert "continued from a checkpoint at step 2" in said
    states = []
    for folder in ("whole", "part"):
        place = find_checkpoints(tmp_path / folder)[-1]
        assert place.name == "step-00000004"
        states.append(arrays_of(framework, place / "shared.state"))
    whole, part = states
    assert whole.keys() == part.keys()
    assert len(whole) > 300
    for name, value in whole.items():
        assert np.array_equal(value, part[name]), name


def arrays_of(framework: str, path: Path) -> dict[str, Any]:
    """Return the weights, statistics and momenta of a checkpoint, by name."""
    if framework == "torch":
        import torch

        state = torch.load(path, weights_only=True)
        arrays = {name: value.numpy() for name, value in state["model"].items()}
        for number, momenta in state["optimizer"]["state"].items():
            arrays[f"momentum {number}"] = momenta["momentum_buffer"].numpy()
        return arrays
    from tests.workloads.twins import import_paddle

    state = import_paddle().load(str(path))
    arrays = {name: value.numpy() for name, value in state["model"].items()}
    for name, value in state["optimizer"].items():
        if hasattr(value, "numpy"):
            arrays[name] = value.numpy()
    return arrays
