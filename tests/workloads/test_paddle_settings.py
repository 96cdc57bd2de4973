"""Paddle's settings in the reference systems: threads, scale, layout, mixed precision.

On a CPU, Paddle has no mixed precision. The scaler is a fake there: its state is Paddle's own, as
`GradScaler.state_dict` documents it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from profkit.workloads.base import MixedPrecision, Parts
from profkit.workloads.training.network import predictor
from profkit.workloads.training.samples import BadSamples
from tests.workloads.twins import import_paddle

CONFIG = {
    "precision": "fp32", "amp": "", "device": "cpu", "memory_format": "NCHW", "world_size": 1,
    "data": "synthetic", "steps": 4, "batch_size": 2, "lr": 0.1, "momentum": 0.9,
    "weight_decay": 1e-4,
}  # fmt: skip


class FakeScaler:
    """A scaler whose scale halves at a step that it skips."""

    def __init__(self, init_loss_scaling: float) -> None:
        self.scale_now = init_loss_scaling
        self._found_inf = False
        self.overflows = [False, True, False]

    def scale(self, loss: Any) -> Any:
        return loss * self.scale_now

    def unscale_(self, optimizer: Any) -> None:
        self._found_inf = self.overflows.pop(0)

    def step(self, optimizer: Any) -> None:
        pass

    def update(self) -> None:
        if self._found_inf:
            self.scale_now /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"scale": np.array([self.scale_now], dtype=np.float32), "incr_ratio": 2.0}

    def get_init_loss_scaling(self) -> float:
        return 1024.0


def driver_of(**changes: Any) -> Any:
    paddle = import_paddle()
    from profkit.workloads.training import ops_paddle
    from profkit.workloads.training.paddle_driver import PaddleDriver

    model = changes.pop("model", None) or paddle.nn.Linear(3, 2)
    config = {**CONFIG, **changes}
    parts = Parts(
        model=model,
        optimizer=ops_paddle.make_sgd(model, config),
        loss_of=lambda model, batch: model(batch[0]).mean(),
        dataset=None,
        synthetic=lambda count: (np.ones((count, 3), dtype=np.float32),),
        sync_bn=changes.pop("sync_bn", False),
        mixed=changes.pop("mixed", MixedPrecision(first_scale=1024.0, black=("mean",))),
    )
    return PaddleDriver(parts, config, BadSamples())


def test_the_scale_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    paddle = import_paddle()
    monkeypatch.setattr(paddle.amp, "GradScaler", FakeScaler)
    driver = driver_of(precision="fp16")
    scales = [driver.grad_scale]
    for step in range(3):
        loss = (driver.bare.weight * 1.0).mean()
        driver.backward(loss)
        driver.update(step)
        scales.append(driver.grad_scale)
    assert scales == [1024.0, 1024.0, 512.0, 512.0]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_mixed_precision_has_the_published_lists_and_level(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paddle = import_paddle()
    seen: dict[str, Any] = {}

    def decorate(model: Any, optimizer: Any, **options: Any) -> tuple[Any, Any]:
        seen["decorated"] = options
        return model, optimizer

    amp = SimpleNamespace(
        GradScaler=FakeScaler,
        auto_cast=lambda **options: seen.setdefault("cast", options),
        decorate=decorate,
    )
    monkeypatch.setattr(paddle, "amp", amp)
    driver = driver_of(precision="fp16", amp=level)
    driver.autocast()
    decorated = {"level": "O2", "dtype": "float16"} if level == "O2" else None
    assert seen.get("decorated") == decorated, "only O2 has weights of half precision"
    assert seen["cast"] == {
        "level": level,
        "dtype": "float16",
        "custom_white_list": None,
        "custom_black_list": ("mean",),
    }
    assert driver.casts_evaluation == (level == "O2")


@pytest.mark.parametrize(("ranks", "device"), [(2, "gpu:0"), (1, "gpu:0"), (2, "cpu")])
def test_batch_norm_is_shared_by_several_ranks_on_gpus(
    ranks: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paddle = import_paddle()
    monkeypatch.setattr(paddle, "DataParallel", lambda model: model)
    model = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 1), paddle.nn.BatchNorm2D(4))
    before = model[1].weight
    given = {"world_size": ranks, "device": device, "memory_format": "NHWC"}
    driver = driver_of(model=model, sync_bn=True, **given)
    is_shared = isinstance(driver.bare[1], paddle.nn.SyncBatchNorm)
    assert is_shared == (ranks > 1 and device != "cpu")
    assert driver.bare[1].weight is before, "the optimizer keeps its parameters"
    assert driver.bare[1]._data_format == "NHWC"


def test_nhwc_gives_the_scores_of_nchw() -> None:
    paddle = import_paddle()
    from profkit.workloads.training import ops_paddle

    paddle.seed(1)
    model = ops_paddle.resnet50(10)
    model.eval()
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32), dtype=np.float32)
    with predictor(ops_paddle, model) as predict:
        before = predict(images)
    driver = driver_of(model=model, memory_format="NHWC")
    batch = driver.move((images, np.arange(2)))
    assert (batch[0].shape, batch[1].shape) == ([2, 32, 32, 3], [2])
    driver.model.eval()
    with paddle.no_grad():
        moved = driver.model(batch[0]).numpy()
    with predictor(ops_paddle, driver.bare) as predict:
        evaluated = predict(images)
    assert np.allclose(moved, before, atol=1e-4)
    assert np.allclose(evaluated, before, atol=1e-4)


def test_a_single_rank_has_all_cores(tmp_path: Path) -> None:
    """Paddle sets one thread when it is imported, unless the number is set before."""
    pytest.importorskip("paddle")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = ["trace", "resnet50", "--framework", "paddle", "--data", "synthetic", "--steps", "2"]
    words += ["--image-size", "32", "--batch-size", "2", "--output", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "profkit", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"threads": {len(os.sched_getaffinity(0))}' in done.stdout
    assert "OMP_NUM_THREADS" not in done.stderr


def test_counting_gpus_leaves_the_threads_of_ranks_alone() -> None:
    pytest.importorskip("paddle")
    code = (
        "import os; os.environ.pop('OMP_NUM_THREADS', None); "
        "from profkit.workloads.training.prepare import gpu_count; gpu_count('paddle'); "
        "print('OMP_NUM_THREADS' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
