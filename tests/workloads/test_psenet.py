"""PSENet in both frameworks: one architecture, the published loss, and evaluation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from profkit.errors import UnreadableError, UsageError
from profkit.progress import Progress
from profkit.workloads import psenet
from profkit.workloads.base import Build, Settings
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.icdar import Scene, TextIndex, Word, check_tree
from profkit.workloads.datasets.signs import GeneratedSigns
from profkit.workloads.psenet import net
from profkit.workloads.psenet.data import (
    DEVIATION,
    MEAN,
    RATES,
    TextCrops,
    WholeScenes,
    draw_polygons,
    made_up_batch,
)
from profkit.workloads.psenet.matching import Matches, match
from profkit.workloads.psenet.text_regions import connected, expand, shrink, smallest_rectangle
from profkit.workloads.training.network import predictor
from profkit.workloads.training.samples import BadSampleError, BadSamples
from tests.workloads.twins import assert_close, import_paddle, paddle_size, torch_size

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(
    "ignore:When training, we now always track"
)  # said by every batch norm of Paddle

Arrays = tuple[npt.NDArray[np.float32], ...]
SMALL = GeneratedSigns(train=3, test=2, width=320, height=180)
CONFIG = {
    "batch_size": 2, "global_batch_size": 2, "image_size": 64,
    "lr": 0.001, "momentum": 0.99, "weight_decay": 5e-4,
    "steps": 2, "seed": 0, "world_size": 1, "device": "cpu", "workers": 1, "evaluate": True,
}  # fmt: skip


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


# The model


@pytest.fixture(scope="module")
def torch_model() -> Any:
    from profkit.workloads.training import ops_torch

    return net.make_model(ops_torch, seed=0)


@pytest.fixture(scope="module")
def paddle_model() -> Any:
    import_paddle()
    from profkit.workloads.training import ops_paddle

    return net.make_model(ops_paddle, seed=0)


def test_both_have_the_parameters_of_the_published_parts(
    torch_model: Any, paddle_model: Any
) -> None:
    resnet = (
        23_508_032 - (9_408 + 128) + (1_728 + 128 + 36_864 + 128 + 73_728 + 256) + 64 * (64 + 256)
    )  # another stem, 128 channels into the first block
    pyramid = 256 * (256 + 512 + 1024 + 2048) + 3 * 9 * 256 * 256 + 7 * 2 * 256
    head = 9 * 1024 * 256 + 256 + 2 * 256 + 7 * 256 + 7
    assert (
        torch_size(torch_model)
        == paddle_size(paddle_model)
        == resnet + pyramid + head
        == 28_749_767
    )


def test_the_same_seed_gives_the_same_loss_and_gradient_in_both(
    torch_model: Any, paddle_model: Any
) -> None:
    from profkit.workloads.training import ops_paddle, ops_torch

    paddle = import_paddle()
    batch = made_up_batch(2, 96, seed=0)
    ours = net.loss_of(ops_torch, torch_model, [torch.from_numpy(array) for array in batch])
    theirs = net.loss_of(ops_paddle, paddle_model, [paddle.to_tensor(array) for array in batch])
    ours.backward()
    theirs.backward()
    assert 0.3 < ours.item() <= 1
    assert float(theirs) == pytest.approx(ours.item(), rel=1e-3)
    assert_close(
        torch_model.head[3].weight.grad.numpy(), paddle_model.head[3].weight.grad.numpy(), 0.02
    )
    torch_model.zero_grad()


def test_the_same_seed_gives_the_same_maps_in_both_at_a_quarter_of_the_size(
    torch_model: Any, paddle_model: Any
) -> None:
    from profkit.workloads.training import ops_paddle, ops_torch

    images = np.random.default_rng(0).standard_normal((2, 3, 96, 64), dtype=np.float32)
    with torch.no_grad():
        ours = torch_model.train()(torch.from_numpy(images)).numpy()
    paddle_model.train()
    theirs = paddle_model(import_paddle().to_tensor(images)).numpy()
    assert ours.shape == (2, 7, 24, 16)
    assert_close(ours, theirs, 2e-3)
    with (
        predictor(ops_torch, torch_model) as ours_of,
        predictor(ops_paddle, paddle_model) as theirs_of,
    ):
        assert ours_of(images[:1]).shape == theirs_of(images[:1]).shape == (1, 7, 24, 16)
    assert torch_model.training
    assert paddle_model.training


# The loss


def hard_by_hand(
    scores: npt.NDArray[Any], text: npt.NDArray[Any], care: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """One image: pixel by pixel."""
    wanted = [pixel for pixel in np.ndindex(text.shape) if text[pixel] > 0.5 and care[pixel] > 0.5]
    others = sorted(
        (scores[pixel] for pixel in np.ndindex(text.shape) if text[pixel] <= 0.5), reverse=True
    )
    kept = others[: 3 * len(wanted)]
    if not kept:
        return care
    return np.array(
        [
            [
                care[y, x] > 0.5 and (text[y, x] > 0.5 or scores[y, x] >= kept[-1])
                for x in range(text.shape[1])
            ]
            for y in range(text.shape[0])
        ]
    )


def dice_by_hand(
    logits: npt.NDArray[Any], target: npt.NDArray[Any], mask: npt.NDArray[Any]
) -> float:
    found = mask / (1 + np.exp(-logits.astype(float)))
    wanted = target * mask
    return float(1 - 2 * (found * wanted).sum() / ((found**2).sum() + (wanted**2).sum() + 0.002))


def loss_by_hand(
    logits: npt.NDArray[Any],
    text: npt.NDArray[Any],
    kernels: npt.NDArray[Any],
    care: npt.NDArray[Any],
) -> float:
    losses = []
    for image in range(len(text)):
        of_text = dice_by_hand(
            logits[image, 0], text[image], hard_by_hand(logits[image, 0], text[image], care[image])
        )
        inside = text[image] * care[image]
        of_kernels = [
            dice_by_hand(logits[image, number + 1], kernels[image, number], inside)
            for number in range(6)
        ]
        losses.append(0.7 * of_text + 0.3 * np.mean(of_kernels))
    return float(np.mean(losses))


@pytest.fixture(scope="module")
def outputs() -> Arrays:
    """Four images: text, partly illegible text, no text at all, and only text."""
    rng = np.random.default_rng(5)
    text = (rng.random((4, 12, 12)) < 0.15).astype(np.float32)
    text[2], text[3] = 0, 1
    kernels = text[:, None] * (rng.random((4, 6, 12, 12)) < 0.6).astype(np.float32)
    care = np.ones_like(text)
    care[1, :, :6] = 0
    return rng.standard_normal((4, 7, 12, 12)).astype(np.float32) * 3, text, kernels, care


def test_the_loss_is_the_one_by_hand_in_torch(outputs: Arrays) -> None:
    from profkit.workloads.training import ops_torch

    logits, text, _, care = outputs
    planes = [torch.from_numpy(array) for array in (logits[:, 0], text, care)]
    hard = net.hard_pixels(ops_torch, *planes).numpy()
    assert np.array_equal(
        hard,
        np.stack([hard_by_hand(*planes) for planes in zip(logits[:, 0], text, care, strict=True)]),
    )
    loss = net.text_loss(ops_torch, *(torch.from_numpy(array) for array in outputs))
    assert loss.item() == pytest.approx(loss_by_hand(*outputs), rel=1e-5)


def test_the_loss_is_the_one_by_hand_in_paddle(outputs: Arrays) -> None:
    paddle = import_paddle()
    from profkit.workloads.training import ops_paddle

    logits, text, _, care = outputs
    planes = [paddle.to_tensor(array) for array in (logits[:, 0], text, care)]
    hard = net.hard_pixels(ops_paddle, *planes).numpy()
    assert np.array_equal(
        hard,
        np.stack([hard_by_hand(*planes) for planes in zip(logits[:, 0], text, care, strict=True)]),
    )
    loss = net.text_loss(ops_paddle, *(paddle.to_tensor(array) for array in outputs))
    assert float(loss) == pytest.approx(loss_by_hand(*outputs), rel=1e-5)


def test_three_others_are_kept_for_each_pixel_of_text(outputs: Arrays) -> None:
    from profkit.workloads.training import ops_torch

    logits, text, _, care = outputs
    planes = [torch.from_numpy(array[:1]) for array in (logits[:, 0], text, care)]
    hard = net.hard_pixels(ops_torch, *planes)
    assert hard.sum() == 4 * text[0].sum()


def test_the_loss_is_near_zero_for_what_is_right_and_near_one_for_its_opposite(
    outputs: Arrays,
) -> None:
    from profkit.workloads.training import ops_torch

    _, text, kernels, care = (torch.from_numpy(array[:1]) for array in outputs)
    right = 40 * torch.cat([text[:, None], kernels], dim=1) - 20
    assert net.text_loss(ops_torch, right, text, kernels, care).item() < 0.01
    assert 0.99 < net.text_loss(ops_torch, -right, text, kernels, care).item() <= 1


# What it is fed


def crops_of(root: Path, policy: str = "error", seed: int = 0) -> TextCrops:
    return TextCrops(check_tree(root), BadSamples(policy), 64, seed)


def test_a_sample_depends_on_its_key_and_the_seed_alone(tree: Path) -> None:
    one, other = crops_of(tree), crops_of(tree)
    other[1, 2]
    for key in ((0, 0), (4, 2)):
        assert all(one[key][field].tobytes() == other[key][field].tobytes() for field in range(4))
    assert not np.array_equal(one[0, 0][0], one[1, 0][0])
    assert not np.array_equal(one[0, 0][0], crops_of(tree, seed=1)[0, 0][0])


def test_a_sample_has_an_image_text_kernels_and_care(tree: Path) -> None:
    image, text, kernels, care = crops_of(tree)[0, 1]
    assert (image.shape, text.shape, kernels.shape, care.shape) == (
        (3, 64, 64),
        (64, 64),
        (6, 64, 64),
        (64, 64),
    )
    assert (image.dtype.name, text.dtype.name) == ("float32", "uint8")
    made_up = made_up_batch(3, 64, seed=0)
    assert [(array.shape[1:], array.dtype) for array in made_up] == [
        (array.shape, array.dtype) for array in (image, text, kernels, care)
    ]


def sign(tmp_path: Path, text: str) -> TextCrops:
    """A white sign before black, and its word."""
    corners = ((300, 200), (900, 240), (880, 480), (280, 440))
    image = Image.fromarray(np.zeros((720, 1280, 3), dtype=np.uint8))
    image.paste((255, 255, 255), (0, 0), Image.fromarray(_sign_mask(corners)))
    image.save(tmp_path / "img_1.png")
    return TextCrops(
        TextIndex(tmp_path, "train", (Scene(str(tmp_path / "img_1.png"), (Word(corners, text),)),)),
        BadSamples(),
        256,
        0,
    )


def _sign_mask(corners: tuple[tuple[int, int], ...]) -> npt.NDArray[np.uint8]:
    return draw_polygons([np.array(corners, dtype=float)], 1280)[:720] * 255


def test_the_masks_lie_where_the_image_shows_the_word(tmp_path: Path) -> None:
    crops = sign(tmp_path, "word")
    for epoch in range(8):
        image, text, kernels, care = crops[epoch, 0]
        white = (image * DEVIATION[:, None, None] + MEAN[:, None, None]).mean(axis=0) > 127
        assert (white != text).mean() < 0.02
        assert 0 < text.mean() < 1
        sizes = [mask.sum() for mask in (text, *kernels)]
        assert sizes == sorted(sizes, reverse=True)
        assert not (kernels & (1 - text)).any()
        assert care.mean() > 0.5


def test_an_illegible_word_is_not_to_be_cared_for(tmp_path: Path) -> None:
    _, text, _, care = sign(tmp_path, "###")[0, 0]
    assert not care[text > 0].any()
    assert care.any()


def test_a_truncated_image_ends_the_job_or_is_grey_in_its_own_size(
    tree: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(tree, tmp_path / "icdar2015"))
    file = broken / "ch4_training_images" / "img_1.jpg"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(BadSampleError, match=r"img_1\.jpg: not a whole image"):
        crops_of(broken)[0, 0]
    crops = crops_of(broken, "pad")
    _, text, _, _ = crops[0, 0]
    assert np.array_equal(text, crops_of(tree)[0, 0][1])
    assert [bad.path for bad in crops.bad.news()] == [str(file)]


def test_kernels_shrink_by_the_published_rule() -> None:
    quad = np.array([(0, 0), (200, 0), (200, 40), (0, 40)], dtype=float)
    inwards = [round(8000 * (1 - rate**2) / 480) for rate in RATES]
    for rate, distance in zip(RATES, inwards, strict=True):
        left, top = shrink(quad, rate).min(axis=0)
        assert left == top == distance
    assert np.array_equal(shrink(quad[[0, 0, 0, 0]], 0.5), quad[[0, 0, 0, 0]])
    thin = np.array([(0, 0), (200, 0), (200, 2), (0, 2)], dtype=float)
    assert np.array_equal(shrink(thin, 0.4), thin)


# How it is judged


def flood(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    labels = np.zeros(mask.shape, dtype=int)
    for start in zip(*np.nonzero(mask), strict=True):
        if labels[start]:
            continue
        number, queue = labels.max() + 1, deque([start])
        while queue:
            y, x = queue.popleft()
            if (
                0 <= y < mask.shape[0]
                and 0 <= x < mask.shape[1]
                and mask[y, x]
                and not labels[y, x]
            ):
                labels[y, x] = number
                queue.extend(((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)))
    return labels


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_connected_parts_are_those_that_a_flood_finds(share: float) -> None:
    mask = np.random.default_rng(7).random((23, 31)) < share
    ours, theirs = connected(mask), flood(mask)
    assert np.array_equal(ours > 0, mask)
    assert (
        len(np.unique(ours))
        == len(np.unique(theirs))
        == len(set(zip(ours.ravel(), theirs.ravel(), strict=True)))
    )


def test_regions_grow_through_the_kernels_and_meet_half_way() -> None:
    text = np.ones((1, 9), dtype=bool)
    small = np.array([[1, 0, 0, 0, 0, 0, 0, 0, 1]], dtype=bool)
    middle = np.array([[1, 1, 1, 0, 0, 0, 0, 0, 1]], dtype=bool)
    assert expand(np.stack([text, small])).tolist() == [[1, 1, 1, 1, 2, 2, 2, 2, 2]]
    assert expand(np.stack([text, middle, small])).tolist() == [[1, 1, 1, 1, 1, 2, 2, 2, 2]]


def test_text_that_no_kernel_reaches_has_no_region() -> None:
    text = np.array([[1, 1, 0, 1, 1]], dtype=bool)
    assert expand(np.stack([text, np.array([[0, 1, 0, 0, 0]], dtype=bool)])).tolist() == [
        [1, 1, 0, 0, 0]
    ]


def test_the_smallest_rectangle_around_a_turned_one_is_itself() -> None:
    quad = np.array([(60, 20), (180, 60), (164, 108), (44, 68)], dtype=float)
    box = smallest_rectangle(draw_polygons([quad], 200) > 0)
    assert match([box], [Word(tuple((int(x), int(y)) for x, y in quad), "word")]).matched == 1
    for corner in quad:
        assert np.hypot(*(box - corner).T).min() < 3
    single = np.zeros((3, 3), dtype=bool)
    single[1, 1] = True
    assert sorted(smallest_rectangle(single).tolist()) == [[1, 1], [1, 2], [2, 1], [2, 2]]


def square(left: int, text: str = "word") -> Word:
    return Word(((left, 0), (left + 10, 0), (left + 10, 10), (left, 10)), text)


def box(left: float) -> npt.NDArray[np.float64]:
    return np.array([(left, 0), (left + 10, 0), (left + 10, 10), (left, 10)], dtype=float)


def test_boxes_match_words_that_they_overlap_by_more_than_half() -> None:
    assert match([box(3)], [square(0)]) == Matches(1, 1, 1)
    assert match([box(4)], [square(0)]) == Matches(0, 1, 1)
    assert match([box(0), box(0.5)], [square(0)]) == Matches(1, 2, 1)
    assert match([], [square(0)]) == Matches(0, 0, 1)
    assert match([box(0)[[0, 0, 1, 1]]], [square(0)]) == Matches(0, 1, 1)
    assert match([box(0)[::-1]], [square(0)]) == Matches(1, 1, 1)


def test_illegible_words_count_neither_for_nor_against() -> None:
    assert match([box(0), box(104)], [square(0), square(100, "###")]) == Matches(1, 1, 1)
    assert match([box(106)], [square(100, "###")]) == Matches(0, 1, 0)
    assert Matches().figures == {"precision": 0, "recall": 0, "f_measure": 0}
    assert Matches(2, 4, 3).figures["f_measure"] == pytest.approx(4 / 7)


def perfect_logits(scenes: WholeScenes, number: int) -> npt.NDArray[np.float64]:
    """Return the outputs of a network that is always right and certain."""
    pixels, stretch, words = scenes[number]
    height, width = pixels.shape[-2:]
    quads = [np.array(word.corners) / stretch / 4 for word in words]
    small = [quad.mean(axis=0) + (quad - quad.mean(axis=0)) * 0.5 for quad in quads]
    planes = [draw_polygons(quads, max(height, width) // 4)] + [
        draw_polygons(small, max(height, width) // 4)
    ] * 6
    text = np.stack(planes)[None, :, : height // 4, : width // 4] > 0
    return np.where(text, 10.0, -10.0)


class FakeModel:
    """Gives these answers in turn."""

    training = False

    def __init__(self, logits: list[npt.NDArray[np.float64]]) -> None:
        self.answers = iter(logits)

    def __call__(self, pixels: npt.NDArray[np.float32]) -> Any:
        return np.concatenate([next(self.answers) for _ in pixels])

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
    return psenet.make_parts(build, ops)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def figures(root: Path, logits: list[npt.NDArray[np.float64]], policy: str = "error") -> Any:
        build = Build({**CONFIG, "image_size": 720}, root, BadSamples(policy))
        parts = parts_from(monkeypatch, build)
        assert parts.evaluate is not None
        return parts.evaluate(FakeModel(logits))

    return figures


def test_perfect_maps_find_every_word_and_empty_ones_none(
    tree: Path, judge: Callable[..., Any]
) -> None:
    scenes = WholeScenes(check_tree(tree, "test"), BadSamples(), 720)
    perfect = [perfect_logits(scenes, number) for number in range(2)]
    assert judge(tree, perfect) == {"precision": 1, "recall": 1, "f_measure": 1}
    assert judge(tree, [np.full_like(logits, -10) for logits in perfect]) == {
        "precision": 0,
        "recall": 0,
        "f_measure": 0,
    }


def test_a_bad_image_is_left_out_of_the_evaluation(
    tree: Path, tmp_path: Path, judge: Callable[..., Any]
) -> None:
    scenes = WholeScenes(check_tree(tree, "test"), BadSamples(), 720)
    broken = Path(shutil.copytree(tree, tmp_path / "icdar2015"))
    (broken / "ch4_test_images" / "img_1.jpg").write_bytes(b"no image")
    assert judge(broken, [perfect_logits(scenes, 1)], "skip")["f_measure"] == 1
    with pytest.raises(BadSampleError):
        judge(broken, [perfect_logits(scenes, 1)])


# The workload


def test_a_torch_step_on_made_data(tree: Path) -> None:
    parts = psenet.WORKLOAD.builders["torch"](Build(CONFIG, tree, BadSamples()))
    assert parts.dataset is not None
    batch = [
        torch.from_numpy(np.stack(arrays))
        for arrays in zip(*(parts.dataset[0, number] for number in (0, 1)), strict=True)
    ]
    loss = parts.loss_of(parts.model, batch)
    loss.backward()
    parts.optimizer.step()
    assert 0 < loss.item() <= 1


def test_the_rate_falls_at_epochs_200_and_400(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build({**CONFIG, "global_batch_size": 16}, None, BadSamples())
    factors = parts_from(monkeypatch, build).lr_at
    assert factors is not None
    assert [factors(62 * epoch) for epoch in (0, 199, 200, 399, 400)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01]
    )


def test_a_missing_test_split_is_told_before_training(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = Path(shutil.copytree(tree, tmp_path / "icdar2015"))
    shutil.rmtree(partial / "ch4_test_images")
    with pytest.raises(UnreadableError, match="no 'ch4_test_images' folder"):
        parts_from(monkeypatch, Build(CONFIG, partial, BadSamples()))
    parts_from(monkeypatch, Build({**CONFIG, "evaluate": False}, partial, BadSamples()))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"psenet needs pyclipper, .* pip install 'profkit\[systems\]'"
    ):
        psenet.WORKLOAD.check(Settings("torch"))


def test_loading_the_module_imports_no_framework() -> None:
    code = (
        "import sys, profkit.workloads.psenet; "
        "sys.exit(bool({'torch', 'paddle', 'PIL', 'pyclipper'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
