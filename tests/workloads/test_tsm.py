"""TSM in both frameworks: one architecture, the published sizes, and time that matters."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from profkit.errors import UnreadableError
from profkit.progress import Progress
from profkit.workloads import tsm
from profkit.workloads.base import Build
from profkit.workloads.datasets.kinetics import GeneratedSet, check_tree, generate
from profkit.workloads.training.samples import BadSampleError, BadSamples
from tests.workloads.twins import assert_close, import_paddle, paddle_size, torch_size

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(
    "ignore:When training, we now always track"
)  # said by every batch norm of Paddle

SEGMENTS, CLASSES = 8, 400
SMALL = GeneratedSet(
    classes=3,
    train_per_class=2,
    val_per_class=2,
    least_frames=8,
    most_frames=9,
    width=85,
    height=64,
)
CONFIG = {
    "batch_size": 2, "global_batch_size": 2, "image_size": 32, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4,
    "steps": 2, "seed": 0, "world_size": 1, "device": "cpu", "workers": 1, "evaluate": True,
}  # fmt: skip


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture(scope="module")
def torch_model() -> Any:
    from profkit.workloads.tsm import torch_net as _tsm_torch

    model = _tsm_torch.make_model(CLASSES, SEGMENTS, seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(
                _tsm_torch.ZERO_AT_FIRST
            ):  # or blocks would be the identity, and nothing would be shifted
                weight.fill_(1)
    return model


@pytest.fixture(scope="module")
def paddle_model() -> Any:
    import_paddle()
    from profkit.workloads.tsm import paddle_net as _tsm_paddle

    model: Any = _tsm_paddle.make_model(CLASSES, SEGMENTS, seed=0)
    for name, weight in model.named_parameters():
        if name.endswith(_tsm_paddle.ZERO_AT_FIRST):
            weight.set_value(np.ones(weight.shape, dtype=np.float32))
    return model


@pytest.fixture(scope="module")
def clips() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((2, SEGMENTS, 3, 32, 32), dtype=np.float32)


def test_both_have_the_published_number_of_parameters(torch_model: Any, paddle_model: Any) -> None:
    assert torch_size(torch_model) == paddle_size(paddle_model) == 24_327_632


def test_the_same_seed_gives_the_same_scores_in_both(
    torch_model: Any, paddle_model: Any, clips: npt.NDArray[np.float32]
) -> None:
    from profkit.workloads.tsm import paddle_net as _tsm_paddle
    from profkit.workloads.tsm import torch_net as _tsm_torch

    torch_model.train()
    paddle_model.train()
    with (
        _tsm_torch.predictor(torch_model) as ours_of,
        _tsm_paddle.predictor(paddle_model) as theirs_of,
    ):
        ours, theirs = ours_of(clips), theirs_of(clips)
    assert ours.shape == (2, CLASSES)
    assert_close(ours, theirs, 1e-3)
    assert torch_model.training
    assert paddle_model.training


def test_the_order_of_segments_matters(torch_model: Any, clips: npt.NDArray[np.float32]) -> None:
    from profkit.workloads.tsm import torch_net as _tsm_torch

    with _tsm_torch.predictor(torch_model) as predict:
        forwards, backwards = predict(clips), predict(np.ascontiguousarray(clips[:, ::-1]))
    assert np.abs(forwards - backwards).max() > 0.01 * np.abs(forwards).max()


def shift_by_hand(frames: npt.NDArray[np.float32], segments: int) -> npt.NDArray[np.float32]:
    shifted: npt.NDArray[np.float32] = frames.copy()
    eighth = frames.shape[1] // 8
    for number in range(len(frames)):
        at = number % segments
        shifted[number, :eighth] = frames[number - 1, :eighth] if at > 0 else 0
        shifted[number, eighth : 2 * eighth] = (
            frames[number + 1, eighth : 2 * eighth] if at < segments - 1 else 0
        )
    return shifted


def test_the_shift_is_the_one_by_hand_in_both() -> None:
    from profkit.workloads.tsm.torch_net import temporal_shift

    paddle = import_paddle()
    frames = np.random.default_rng(1).standard_normal((12, 16, 2, 3), dtype=np.float32)
    by_hand = shift_by_hand(frames, 4)
    assert np.array_equal(temporal_shift(torch.from_numpy(frames), 4).numpy(), by_hand)
    assert np.array_equal(
        paddle.nn.functional.temporal_shift(paddle.to_tensor(frames), 4, 1 / 8).numpy(), by_hand
    )


def parts_of(framework: str, data: Path | None, policy: str = "error", **config: Any) -> Any:
    return tsm.WORKLOAD.builders[framework](Build({**CONFIG, **config}, data, BadSamples(policy)))


def test_a_torch_step_starts_at_the_loss_of_a_guess(tree: Path) -> None:
    parts = parts_of("torch", tree)
    frames, labels = zip(*(parts.dataset[0, number] for number in (0, 3)), strict=True)
    loss = parts.loss_of(
        parts.model, (torch.from_numpy(np.stack(frames)), torch.tensor(np.stack(labels)))
    )
    loss.backward()
    parts.optimizer.step()
    assert loss.item() == pytest.approx(math.log(3), abs=0.2)
    assert (parts.clip_norm, parts.notes["classes"], parts.dataset.segments) == (20, 3, 8)


def test_a_paddle_step_starts_at_the_loss_of_a_guess() -> None:
    paddle = import_paddle()
    parts = parts_of("paddle", None)
    batch = parts.synthetic(2)
    assert (batch[0].shape, batch[1].shape, parts.count(batch)) == ((2, 8, 3, 32, 32), (2,), 2)
    loss = parts.loss_of(parts.model, [paddle.to_tensor(array) for array in batch])
    loss.backward()
    parts.optimizer.step()
    assert float(loss) == pytest.approx(math.log(400), abs=0.2)
    assert parts.dataset is None
    assert parts.evaluate is None


def test_the_rate_falls_at_epochs_20_and_40(tree: Path) -> None:
    factors = tsm._parts(Build(CONFIG, tree, BadSamples()), fake_net({})).lr_at
    assert factors is not None
    assert [factors(3 * epoch + 2) for epoch in (0, 19, 20, 39, 40)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )


def fake_net(answers: dict[int, int]) -> Any:
    """A framework whose model gives a class for each clip by the order in which it is asked; others are given the last class."""

    @contextmanager
    def predictor(model: object) -> Iterator[Any]:
        asked = iter(range(1000))
        yield lambda frames: np.eye(3)[[answers.get(next(asked), 2)]]

    return SimpleNamespace(
        make_model=lambda *sizes: None,
        make_optimizer=lambda *given: None,
        loss_of=None,
        predictor=predictor,
    )


def top1(tree: Path, answers: dict[int, int], policy: str = "error") -> float:
    parts = tsm._parts(Build(CONFIG, tree, BadSamples(policy)), fake_net(answers))
    assert parts.evaluate is not None
    return parts.evaluate(None)["top1"]


def test_top1_is_one_for_perfect_answers_and_a_third_for_one_and_the_same(tree: Path) -> None:
    truth = {number: clip.label for number, clip in enumerate(check_tree(tree, "val").clips)}
    assert top1(tree, truth) == 1
    assert top1(tree, {}) == pytest.approx(1 / 3)


def test_a_bad_clip_is_left_out_of_the_evaluation_or_ends_it(tree: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(tree, tmp_path / "kinetics"))
    for file in (broken / "val/rising/clip_0001").iterdir():
        file.unlink()
    assert top1(broken, {0: 0, 1: 1, 2: 1, 3: 2, 4: 2}, "skip") == 1
    with pytest.raises(BadSampleError):
        top1(broken, {})


def test_a_missing_list_of_validation_is_told_before_training(tree: Path, tmp_path: Path) -> None:
    partial = Path(shutil.copytree(tree, tmp_path / "kinetics"))
    (partial / "val.list").unlink()
    with pytest.raises(UnreadableError, match=r"no 'val\.list'"):
        tsm._parts(Build(CONFIG, partial, BadSamples()), fake_net({}))
    tsm._parts(Build({**CONFIG, "evaluate": False}, partial, BadSamples()), fake_net({}))


def test_loading_the_module_imports_no_framework() -> None:
    code = "import sys, profkit.workloads.tsm; sys.exit(bool({'torch', 'paddle', 'PIL', 'pyclipper'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
