"""HRNetW18 in both frameworks: one architecture, the published settings, and evaluation."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.errors import UnreadableError
from profkit.progress import Progress
from profkit.workloads import hrnet_w18
from profkit.workloads.base import Build, Parts
from profkit.workloads.datasets.cityscapes import CLASSES, IGNORED, check_tree
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.streets import GeneratedStreets
from profkit.workloads.hrnet_w18 import net
from profkit.workloads.hrnet_w18.data import read_whole
from profkit.workloads.hrnet_w18.net import CLASSIFIER, PUBLISHED_PARAMETERS, first_weight
from profkit.workloads.training.samples import BadSamples
from tests.workloads.twins import assert_close, import_paddle, paddle_size, torch_size

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(
    "ignore:When training, we now always track"
)  # said by every batch norm of Paddle

SMALL = GeneratedStreets(train=4, val=2, width=128)
CONFIG = {
    "batch_size": 2, "global_batch_size": 2, "image_size": 32,
    "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4,
    "steps": 4, "seed": 0, "world_size": 1, "device": "cpu", "workers": 1, "evaluate": True,
}  # fmt: skip

BEFORE_A_NORM = "head.0.0.bias"


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


def build(framework: str, tree: Path | None, **changes: Any) -> Parts:
    return hrnet_w18.WORKLOAD.builders[framework](Build({**CONFIG, **changes}, tree, BadSamples()))


@pytest.fixture(scope="module")
def torch_parts(tree: Path) -> Parts:
    return build("torch", tree)


@pytest.fixture(scope="module")
def paddle_parts(tree: Path) -> Parts:
    import_paddle()
    return build("paddle", tree)


def test_loading_the_module_imports_no_framework() -> None:
    code = (
        "import sys, profkit.workloads.hrnet_w18; "
        "sys.exit(bool({'torch', 'paddle', 'PIL'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The model


def test_both_have_the_published_parameters(torch_parts: Parts, paddle_parts: Parts) -> None:
    """The published figure is Paddle's own count, which includes the norms' statistics."""
    assert torch_size(torch_parts.model) == paddle_size(paddle_parts.model) == 9_641_119
    with_statistics = sum(
        int(np.prod(parameter.shape)) for parameter in paddle_parts.model.parameters()
    )
    assert round(with_statistics, -5) == PUBLISHED_PARAMETERS


def test_both_start_from_the_same_weights(torch_parts: Parts, paddle_parts: Parts) -> None:
    theirs = dict(paddle_parts.model.named_parameters())
    for name, parameter in torch_parts.model.named_parameters():
        assert (parameter.detach().numpy() == theirs[name].numpy()).all()


def test_the_classifier_starts_small_so_that_no_class_is_preferred(torch_parts: Parts) -> None:
    assert first_weight(CLASSIFIER, (19, 270, 1, 1), 0).shape == (19, 270, 1, 1)
    assert first_weight(CLASSIFIER, (19, 270, 1, 1), 0).std() == pytest.approx(0.001, rel=0.05)
    images, labels = torch_parts.synthetic(2)
    with torch.no_grad():
        loss = torch_parts.loss_of(
            torch_parts.model.train(), (torch.from_numpy(images), torch.from_numpy(labels))
        )
    assert float(loss) == pytest.approx(np.log(CLASSES), rel=0.01)


@pytest.mark.parametrize("training", [True, False])
def test_both_give_the_same_scores_and_gradients_for_the_same_weights(training: bool) -> None:
    """In double precision: in single, gradients through so many norms are nearly all rounding."""
    paddle = import_paddle()
    from profkit.workloads.training import ops_paddle, ops_torch

    models: tuple[Any, Any] = (
        net.make_model(ops_torch, CLASSES, 1).double(),
        net.make_model(ops_paddle, CLASSES, 1).to(dtype="float64"),
    )
    ours, theirs = models
    rng = np.random.default_rng(0)
    images, wanted = rng.standard_normal((2, 3, 64, 96)), rng.standard_normal((2, CLASSES, 64, 96))
    for model in models:
        model.train() if training else model.eval()
    scores, others = ours(torch.from_numpy(images)), theirs(paddle.to_tensor(images))
    (scores * torch.from_numpy(wanted)).mean().backward()
    (others * paddle.to_tensor(wanted)).mean().backward()
    assert_close(scores.detach().numpy(), others.numpy(), 1e-9)
    gradients = {
        name: parameter.grad.numpy()
        for name, parameter in theirs.named_parameters()
        if not parameter.stop_gradient
    }
    for name, parameter in ours.named_parameters():
        if (
            name != BEFORE_A_NORM or not training
        ):  # the norm takes this bias out, and its gradient is nothing but rounding
            assert_close(parameter.grad.numpy(), gradients[name], 1e-6)


@pytest.mark.parametrize("size", [(33, 50), (64, 31)])
def test_every_pixel_has_its_scores_whatever_the_size(
    torch_parts: Parts, size: tuple[int, int]
) -> None:
    with torch.no_grad():
        assert torch_parts.model.train()(torch.rand(2, 3, *size)).shape == (2, CLASSES, *size)


def test_the_first_steps_lose_the_same_in_both(tree: Path) -> None:
    """The same samples, first weights, loss and optimizer."""
    paddle = import_paddle()
    ours, theirs = (
        build("torch", tree, lr=0.005),
        build("paddle", tree, lr=0.005),
    )  # small steps: large ones make much of a rounding
    losses = []
    for epoch in (0, 0, 0):
        images, labels = batch_of(ours, epoch)
        loss = ours.loss_of(
            ours.model.train(), (torch.from_numpy(images), torch.from_numpy(labels))
        )
        theirs.model.train()
        other = theirs.loss_of(theirs.model, (paddle.to_tensor(images), paddle.to_tensor(labels)))
        loss.backward()
        other.backward()
        ours.optimizer.step()
        theirs.optimizer.step()
        ours.optimizer.zero_grad()
        theirs.optimizer.clear_grad()
        losses.append((float(loss.detach()), float(other)))
    assert losses[2][0] < losses[0][0]
    for mine, its in losses:
        assert its == pytest.approx(mine, rel=0.01)


def batch_of(parts: Parts, epoch: int) -> tuple[Any, Any]:
    assert parts.dataset is not None
    images, labels = zip(*(parts.dataset[epoch, place] for place in range(2)), strict=True)
    return np.stack(images), np.stack(labels)


# The loss


class Constant(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is optional
    """A model that gives what it was given."""

    def __init__(self, scores: Any) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, images: Any) -> Any:
        return self.scores


def test_the_loss_is_the_mean_over_pixels_that_have_a_class(torch_parts: Parts) -> None:
    scores, labels = torch.randn(1, CLASSES, 3, 4), torch.randint(0, CLASSES, (1, 3, 4))
    labels[0, 0] = IGNORED
    known = labels != IGNORED
    want = (
        -torch.log_softmax(scores, 1).gather(1, labels.where(known, 0)[:, None])[:, 0][known].mean()
    )
    assert float(torch_parts.loss_of(Constant(scores), (None, labels)).detach()) == pytest.approx(
        float(want), rel=1e-5
    )


def test_the_loss_is_computed_in_a_layer_so_that_its_time_is_forward(torch_parts: Parts) -> None:
    """Time between the last layer and the backward belongs to no phase in Paddle."""
    returned = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, result: returned.append(result)
    )
    with hook:
        loss = torch_parts.loss_of(
            Constant(torch.ones(1, CLASSES, 3, 4)), (None, torch.zeros(1, 3, 4, dtype=torch.int64))
        )
    assert returned[-1] is loss


def test_a_batch_without_any_class_loses_nothing(torch_parts: Parts, paddle_parts: Parts) -> None:
    import paddle

    labels = np.full((1, 3, 4), IGNORED)
    scores = np.ones((1, CLASSES, 3, 4), dtype=np.float32)
    assert (
        float(
            torch_parts.loss_of(
                Constant(torch.from_numpy(scores)), (None, torch.from_numpy(labels))
            ).detach()
        )
        == 0
    )
    assert (
        float(
            paddle_parts.loss_of(
                lambda _: paddle.to_tensor(scores), (None, paddle.to_tensor(labels))
            )
        )
        == 0
    )


# Settings


def test_the_learning_rate_goes_down_to_nothing() -> None:
    factor = hrnet_w18.schedule(100)
    assert [factor(step) for step in (0, 50, 100, 101)] == pytest.approx([1, 0.5**0.9, 0, 0])


def test_epochs_count_as_their_steps(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "make_model", lambda *_: torch.nn.Linear(1, 1))
    lr_at = build("torch", tree, epochs=50).lr_at
    assert lr_at is not None
    assert lr_at(50) == pytest.approx(0.5**0.9)


def test_both_ask_for_norms_over_all_ranks_and_take_the_published_optimizer(
    torch_parts: Parts, paddle_parts: Parts
) -> None:
    assert torch_parts.sync_bn
    assert paddle_parts.sync_bn
    (group,) = torch_parts.optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.01, 0.9, 5e-4)
    assert paddle_parts.optimizer.get_lr() == 0.01


def test_made_up_batches_have_the_sizes_of_training(torch_parts: Parts) -> None:
    images, labels = torch_parts.synthetic(3)
    assert (images.shape, str(images.dtype), labels.shape, str(labels.dtype)) == (
        (3, 3, 32, 64),
        "float32",
        (3, 32, 64),
        "int64",
    )
    assert {int(labels.min()), int(labels.max())} == {0, CLASSES - 1}


def test_the_validation_part_is_asked_for_only_where_it_is_judged(
    tree: Path, tmp_path: Path
) -> None:
    for name in ("leftImg8bit", "gtFine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train").symlink_to(tree / name / "train")
    assert build("torch", tmp_path, evaluate=False).evaluate is None
    with pytest.raises(UnreadableError, match="no 'val' folder"):
        build("torch", tmp_path)


# The judge


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_a_model_is_judged_over_whole_frames(
    framework: str, request: pytest.FixtureRequest
) -> None:
    parts: Parts = request.getfixturevalue(f"{framework}_parts")
    assert parts.evaluate is not None
    parts.model.eval()
    figures = parts.evaluate(parts.model)
    assert set(figures) == {"mean_iou", "pixel_accuracy"}
    assert all(0 <= figure < 1 for figure in figures.values())


def test_the_truth_is_judged_as_perfect_through_the_same_path(tree: Path) -> None:
    index = check_tree(tree, "val")
    labels = iter([read_whole(frame, BadSamples())[1] for frame in index.frames])
    figures = hrnet_w18.evaluate(
        Build(CONFIG, tree, BadSamples()),
        index,
        lambda model, images: np.stack([next(labels) for _ in images]),
        None,
    )
    assert figures == {"mean_iou": 1, "pixel_accuracy": 1}
