"""TSM in both frameworks: one architecture, the published sizes, and time that matters."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.kinetics import check_tree
from profkit.workloads.datasets.motions import GeneratedClips
from profkit.workloads.training.network import predictor
from profkit.workloads.training.samples import BadSampleError, BadSamples
from profkit.workloads.tsm import net
from tests.workloads.twins import assert_close, import_paddle, paddle_size, torch_size

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(
    "ignore:When training, we now always track"
)  # said by every batch norm of Paddle

SEGMENTS, CLASSES = 8, 400
SMALL = GeneratedClips(
    classes=3,
    train_per_class=2,
    val_per_class=2,
    least_frames=8,
    most_frames=9,
    width=85,
    height=64,
)
CONFIG = {
    "batch_size": 2, "global_batch_size": 2, "image_size": 32,
    "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4,
    "steps": 2, "seed": 0, "world_size": 1, "device": "cpu", "workers": 1, "evaluate": True,
}  # fmt: skip


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture(scope="module")
def torch_model() -> Any:
    from profkit.workloads.training import ops_torch

    model = net.make_model(ops_torch, CLASSES, SEGMENTS, seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Otherwise blocks would be the identity, and nothing would be shifted.
            if name.endswith(net.ZERO_AT_FIRST):
                weight.fill_(1)
    return model


@pytest.fixture(scope="module")
def paddle_model() -> Any:
    import_paddle()
    from profkit.workloads.training import ops_paddle

    model: Any = net.make_model(ops_paddle, CLASSES, SEGMENTS, seed=0)
    for name, weight in model.named_parameters():
        if name.endswith(net.ZERO_AT_FIRST):
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
    from profkit.workloads.training import ops_paddle, ops_torch

    torch_model.train()
    paddle_model.train()
    with (
        predictor(ops_torch, torch_model) as ours_of,
        predictor(ops_paddle, paddle_model) as theirs_of,
    ):
        ours, theirs = ours_of(clips), theirs_of(clips)
    assert ours.shape == (2, CLASSES)
    assert_close(ours, theirs, 1e-3)
    assert torch_model.training
    assert paddle_model.training


def test_the_order_of_segments_matters(torch_model: Any, clips: npt.NDArray[np.float32]) -> None:
    from profkit.workloads.training import ops_torch

    with predictor(ops_torch, torch_model) as predict:
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
    from profkit.workloads.training.ops_torch import temporal_shift

    paddle = import_paddle()
    frames = np.random.default_rng(1).standard_normal((12, 16, 2, 3), dtype=np.float32)
    by_hand = shift_by_hand(frames, 4)
    assert np.array_equal(temporal_shift(torch.from_numpy(frames), 4, 1 / 8).numpy(), by_hand)
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
    assert loss.item() == pytest.approx(math.log(400), abs=0.2)
    assert (parts.clip_norm, parts.notes["classes"], parts.dataset.segments) == (20, 400, 8)


def test_a_paddle_step_starts_at_the_loss_of_a_guess() -> None:
    paddle = import_paddle()
    parts = parts_of("paddle", None)
    batch = parts.synthetic(2)
    assert (batch[0].shape, batch[1].shape) == ((2, 8, 3, 32, 32), (2,))
    loss = parts.loss_of(parts.model, [paddle.to_tensor(array) for array in batch])
    loss.backward()
    parts.optimizer.step()
    assert float(loss) == pytest.approx(math.log(400), abs=0.2)
    assert parts.dataset is None
    assert parts.evaluate is None


def test_the_rate_falls_at_epochs_20_and_40(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = parts_from(monkeypatch, Build(CONFIG, tree, BadSamples())).lr_at
    assert factors is not None
    assert [factors(3 * epoch + 2) for epoch in (0, 19, 20, 39, 40)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )


class FakeModel:
    """Gives each clip a class, in the order of calls; later clips get the last class."""

    training = False

    def __init__(self, answers: dict[int, int]) -> None:
        self.answers = answers
        self.asked = 0

    def __call__(self, frames: npt.NDArray[np.float32]) -> Any:
        asked = range(self.asked, self.asked + len(frames))
        self.asked += len(frames)
        return np.eye(3)[[self.answers.get(number, 2) for number in asked]]

    def eval(self) -> None:
        pass


def parts_from(monkeypatch: pytest.MonkeyPatch, build: Build) -> Any:
    """The parts in a framework that only passes arrays on."""
    monkeypatch.setattr(net, "make_model", lambda *given: None)
    ops: Any = SimpleNamespace(
        make_sgd=lambda *given: None,
        no_grad=nullcontext,
        to_tensor=lambda array, model: array,
        to_float=lambda array: array,
        to_numpy=lambda array: array,
    )
    return tsm.make_parts(build, ops)


@pytest.fixture
def top1(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    def judge(tree: Path, answers: dict[int, int], policy: str = "error") -> float:
        parts = parts_from(monkeypatch, Build(CONFIG, tree, BadSamples(policy)))
        assert parts.evaluate is not None
        figure: float = parts.evaluate(FakeModel(answers))["top1"]
        return figure

    return judge


def test_top1_is_one_for_perfect_answers_and_a_third_for_one_and_the_same(
    tree: Path, top1: Callable[..., float]
) -> None:
    truth = {number: clip.label for number, clip in enumerate(check_tree(tree, "val").clips)}
    assert top1(tree, truth) == 1
    assert top1(tree, {}) == pytest.approx(1 / 3)


def test_ranks_share_out_the_evaluation_and_agree_on_its_figure(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = check_tree(tree, "val").clips
    seen: list[tuple[int, int]] = []

    def judge(rank: int, gather: Callable[[Any], list[Any]]) -> float:
        config = {**CONFIG, "rank": rank, "world_size": 4}
        parts = parts_from(monkeypatch, Build(config, tree, BadSamples(), gather))
        truth = {at: clips[number].label for at, number in enumerate(range(rank, 6, 4))}
        if rank == 0:
            truth[0] = (truth[0] + 1) % 3  # one clip of six is wrong
        figure: float = parts.evaluate(FakeModel(truth))["top1"]
        return figure

    def note(counts: Any) -> list[Any]:
        seen.append(counts)
        return [counts]

    for rank in range(4):
        judge(rank, note)
    assert [count for _, count in seen] == [2, 2, 1, 1]
    figures = [judge(rank, lambda counts: seen) for rank in range(4)]
    assert figures == pytest.approx([5 / 6] * 4)


def test_the_last_layer_learns_faster_and_norms_do_not_decay(tree: Path) -> None:
    paddle = import_paddle()
    expected = {
        "fc.1.weight": (0.05, 1e-4),
        "fc.1.bias": (0.1, 0.0),
        "layer1.0.bn1.weight": (0.01, 0.0),
        "layer1.0.bn1.bias": (0.01, 0.0),
        "layer1.0.conv2.weight": (0.01, 1e-4),
    }
    parts = parts_of("torch", None)
    rates = {}
    for group in parts.optimizer.param_groups:
        for weight in group["params"]:
            rates[id(weight)] = (group["lr"], group["weight_decay"])
    weights = dict(parts.model.net.named_parameters())
    assert len(rates) == len(weights)
    for name, rate in expected.items():
        assert rates[id(weights[name])] == pytest.approx(rate)
    theirs = parts_of("paddle", None, weight_decay=0.5)
    weights = dict(theirs.model.net.named_parameters())
    before = {name: weights[name].numpy() for name in expected}
    for name in expected:
        weights[name].grad = paddle.ones_like(weights[name])
    theirs.optimizer.step()
    for name, (lr, decay) in expected.items():
        gradient = 1 + (0.5 if decay else 0) * before[name]
        change = before[name] - weights[name].numpy()
        assert np.allclose(change, lr * gradient, rtol=1e-2, atol=1e-5), name


def test_a_bad_clip_is_left_out_of_the_evaluation_or_ends_it(
    tree: Path, tmp_path: Path, top1: Callable[..., float]
) -> None:
    broken = Path(shutil.copytree(tree, tmp_path / "kinetics"))
    for file in (broken / "val/rising/clip_0001").iterdir():
        file.unlink()
    assert top1(broken, {0: 0, 1: 1, 2: 1, 3: 2, 4: 2}, "skip") == 1
    with pytest.raises(BadSampleError):
        top1(broken, {})


def test_a_missing_list_of_validation_is_told_before_training(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = Path(shutil.copytree(tree, tmp_path / "kinetics"))
    (partial / "val.list").unlink()
    with pytest.raises(UnreadableError, match=r"no 'val\.list'"):
        parts_from(monkeypatch, Build(CONFIG, partial, BadSamples()))
    parts_from(monkeypatch, Build({**CONFIG, "evaluate": False}, partial, BadSamples()))


def test_loading_the_module_imports_no_framework() -> None:
    code = (
        "import sys, profkit.workloads.tsm; "
        "sys.exit(bool({'torch', 'paddle', 'PIL', 'pyclipper'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
