"""Cityscapes' tree: the generated set, reading of frames, training crops, and mean IoU."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from profkit.errors import UnreadableError, UsageError
from profkit.progress import Progress
from profkit.workloads.datasets.cityscapes import (
    CLASSES,
    IGNORED,
    IMAGE_END,
    IMAGES,
    LABEL_END,
    LABELS,
    Frame,
    StreetIndex,
    check_tree,
)
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.streets import GeneratedStreets, encode
from profkit.workloads.hrnet_w18 import data
from profkit.workloads.hrnet_w18.data import (
    GREY,
    StreetCrops,
    cut,
    normalise,
    read_frame,
    read_whole,
    recolour,
)
from profkit.workloads.hrnet_w18.iou import Confusion
from profkit.workloads.training.samples import BadSampleError, BadSamples, Guarded

SMALL = GeneratedStreets(train=8, val=2, width=128)
CROP = (64, 32)


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture(scope="module")
def index(tree: Path) -> StreetIndex:
    return check_tree(tree)


# The generated set


def test_a_frame_made_alone_is_the_one_in_the_set(index: StreetIndex) -> None:
    frame = next(frame for frame in index.frames if "000004" in frame.image)
    assert encode(SMALL, "train", 4) == (
        Path(frame.image).read_bytes(),
        Path(frame.labels).read_bytes(),
    )


def test_every_frame_differs() -> None:
    assert (
        len({encode(SMALL, split, number) for split in ("train", "val") for number in range(3)})
        == 6
    )


def test_it_has_all_classes_and_what_is_ignored() -> None:
    spec = GeneratedStreets(width=64)
    met = set()
    for number in range(spec.train):
        _, labels = encode(spec, "train", number)
        met |= set(np.unique(np.asarray(open_png(labels))).tolist())
    assert met == {*range(CLASSES), IGNORED}


def open_png(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def test_the_splits_have_the_frames_that_were_asked_for(tree: Path) -> None:
    assert [len(check_tree(tree, split).frames) for split in ("train", "val")] == [
        SMALL.train,
        SMALL.val,
    ]


def test_a_set_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one frame"):
        GeneratedStreets(val=0)


# Reading


def write_frame(
    root: Path,
    labels: npt.NDArray[np.uint8],
    pixels: npt.NDArray[np.uint8],
    stem: str = "train/aachen/aachen_000000_000019",
) -> Frame:
    frame = Frame(
        str(root / IMAGES / f"{stem}{IMAGE_END}"), str(root / LABELS / f"{stem}{LABEL_END}")
    )
    for path, content in ((frame.image, pixels), (frame.labels, labels)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(content).save(path)
    return frame


def telling(labels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """An image of which each pixel tells its class by its colour."""
    return np.repeat((labels[:, :, None] * 13).astype(np.uint8), 3, axis=2)


def test_what_is_no_class_is_ignored(tmp_path: Path) -> None:
    labels = np.array([[0, 18, 19, 33, 254, 255]], dtype=np.uint8)
    frame = write_frame(tmp_path, labels, telling(labels))
    assert np.asarray(read_frame(frame, BadSamples())[1]).tolist() == [
        [0, 18, IGNORED, IGNORED, IGNORED, IGNORED]
    ]


def test_whole_frames_are_only_normalised(tmp_path: Path) -> None:
    labels = np.array([[0, 5, 255]], dtype=np.uint8)
    image, classes = read_whole(write_frame(tmp_path, labels, telling(labels)), BadSamples())
    assert image.shape == (3, 1, 3)
    assert image[:, 0, 1] == pytest.approx([65 / 127.5 - 1] * 3)
    assert classes.tolist() == [[0, 5, 255]]


def test_frames_are_ordered_by_city_and_number(tmp_path: Path) -> None:
    labels = np.zeros((2, 2), dtype=np.uint8)
    stems = [
        f"train/{city}/{city}_00000{number}_000019"
        for city in ("aachen", "bochum")
        for number in range(3)
    ]
    for stem in reversed(stems):
        write_frame(tmp_path, labels, telling(labels), stem)
    assert [frame.image for frame in check_tree(tmp_path).frames] == [
        str(tmp_path / IMAGES / f"{stem}{IMAGE_END}") for stem in stems
    ]


# Crops


def test_crops_depend_on_epoch_index_and_seed_alone(index: StreetIndex) -> None:
    first, second = (StreetCrops(index, CROP, 3, BadSamples()) for _ in range(2))
    other = StreetCrops(index, CROP, 4, BadSamples())
    for place in range(len(first)):
        image, labels = first[1, place]
        assert (image == second[1, place][0]).all()
        assert (labels == second[1, place][1]).all()
        assert (image != first[2, place][0]).any()
        assert (image != other[1, place][0]).any()


def test_crops_have_the_shapes_and_kinds_that_training_wants(index: StreetIndex) -> None:
    for epoch in range(4):
        image, labels = StreetCrops(index, CROP, 0, BadSamples())[epoch, 0]
        assert (image.shape, str(image.dtype)) == ((3, 32, 64), "float32")
        assert -1 <= image.min() < 0 < image.max() <= 1
        assert (labels.shape, str(labels.dtype)) == ((32, 64), "int64")
        assert set(np.unique(labels)) <= {*range(CLASSES), IGNORED}


def test_labels_follow_their_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, CLASSES, (40, 80), dtype=np.uint8)
    dataset = StreetCrops(
        StreetIndex(tmp_path, "train", (write_frame(tmp_path, labels, telling(labels)),)),
        CROP,
        0,
        BadSamples(),
    )
    monkeypatch.setattr(data, "SCALES", (1.0,))
    monkeypatch.setattr(data, "recolour", lambda pixels, rng: pixels)
    for epoch in range(6):
        image, classes = dataset[epoch, 0]
        assert np.rint((image[0] + 1) * 127.5).astype(int).tolist() == (classes * 13).tolist()


def test_scaled_labels_lie_where_the_scaled_image_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.repeat(
        np.repeat(np.arange(18, dtype=np.uint8).reshape(3, 6), 20, axis=0), 20, axis=1
    )
    dataset = StreetCrops(
        StreetIndex(tmp_path, "train", (write_frame(tmp_path, labels, telling(labels)),)),
        CROP,
        0,
        BadSamples(),
    )
    monkeypatch.setattr(data, "recolour", lambda pixels, rng: pixels)
    for epoch in range(12):
        image, classes = dataset[epoch, 0]
        known = classes != IGNORED
        right = np.rint((image[0] + 1) * 127.5) == classes * 13
        assert right[known].mean() > 0.7  # the rest are edges, which the image blends


def test_what_is_smaller_than_the_crop_is_filled_up() -> None:
    pixels, classes = np.zeros((10, 30, 3), dtype=np.uint8), np.ones((10, 30), dtype=np.uint8)
    image, labels = cut(pixels, classes, (20, 16), np.random.default_rng(0))
    assert (image.shape, labels.shape) == ((16, 20, 3), (16, 20))
    assert (labels[:10] == 1).all()
    assert (labels[10:] == IGNORED).all()
    assert (image[10:] == GREY).all()


def test_crops_reach_every_corner() -> None:
    classes = np.arange(12, dtype=np.uint8).reshape(3, 4)
    rng = np.random.default_rng(0)
    firsts = {int(cut(np.dstack([classes] * 3), classes, (2, 2), rng)[1][0, 0]) for _ in range(200)}
    assert firsts == {0, 1, 2, 4, 5, 6}


def test_colours_change_in_all_four_ways_and_shapes_stay() -> None:
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    pixels[:, 3:] = (180, 90, 40)
    seen = {recolour(pixels, np.random.default_rng(seed)).tobytes() for seed in range(40)}
    assert len(seen) > 20
    assert pixels.tobytes() in seen  # each is left out in half of the images
    changed = recolour(pixels, np.random.default_rng(0))
    assert (changed == changed[:1]).all()


def test_normalised_pixels_go_from_minus_one_to_one() -> None:
    assert normalise(np.array([[[0, 255, 51]]], dtype=np.uint8)).ravel() == pytest.approx(
        [-1, 1, -0.6]
    )


# Bad samples


def truncate(path: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:-40])


def remove(path: str) -> None:
    Path(path).unlink()


@pytest.fixture
def pair(tmp_path: Path) -> StreetIndex:
    labels = np.random.default_rng(0).integers(0, CLASSES, (40, 80), dtype=np.uint8)
    frames = [
        write_frame(tmp_path, labels, telling(labels), f"train/aachen/aachen_00000{number}_000019")
        for number in range(2)
    ]
    return StreetIndex(tmp_path, "train", tuple(frames))


@pytest.mark.parametrize("part", ["image", "labels"])
@pytest.mark.parametrize("spoil", [truncate, remove])
def test_a_bad_file_is_named_skipped_or_padded(
    pair: StreetIndex, spoil: Callable[[str], None], part: str
) -> None:
    spoiled = getattr(pair.frames[0], part)
    spoil(spoiled)
    with pytest.raises(BadSampleError, match="aachen_000000"):
        StreetCrops(pair, CROP, 0, BadSamples())[0, 0]
    skipping, padding = BadSamples("skip"), BadSamples("pad")
    skipped: Any = Guarded(StreetCrops(pair, CROP, 0, skipping), skipping)[0, 0]
    assert (skipped[0] == StreetCrops(pair, CROP, 0, skipping)[0, 1][0]).all()
    image, labels = StreetCrops(pair, CROP, 0, padding)[0, 0]
    assert (image.shape[1:], labels.shape) == ((32, 64), (32, 64))
    assert [[sample.path for sample in bad.news()] for bad in (skipping, padding)] == [
        [spoiled]
    ] * 2


def test_padded_labels_are_ignored_and_padded_images_grey(pair: StreetIndex) -> None:
    remove(pair.frames[0].labels)
    remove(pair.frames[1].image)
    dataset = StreetCrops(pair, CROP, 0, BadSamples("pad"))
    assert (dataset[0, 0][1] == IGNORED).all()
    assert set(np.unique(dataset[0, 1][1]).tolist()) - {IGNORED}


def test_labels_of_another_size_are_a_bad_sample(pair: StreetIndex) -> None:
    Image.new("L", (3, 2)).save(pair.frames[0].labels)
    with pytest.raises(BadSampleError, match="80x40 pixels, but its labels have 3x2"):
        StreetCrops(pair, CROP, 0, BadSamples())[0, 0]


# Trees that are none


def rename_labels(root: Path) -> None:
    for path in root.rglob(f"*{LABEL_END}"):
        path.rename(path.with_name(path.name.replace("labelTrainIds", "labelIds")))


def remove_all(root: Path, end: str) -> None:
    for path in root.rglob(f"*{end}"):
        path.unlink()


BAD_TREES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no images": (
        lambda root: (root / IMAGES).rename(root / "x"),
        "no 'leftImg8bit' folder in it; unpack leftImg8bit_trainvaltest.zip there",
    ),
    "no labels": (
        lambda root: (root / LABELS).rename(root / "x"),
        "no 'gtFine' folder in it; unpack gtFine_trainvaltest.zip there",
    ),
    "no split": (
        lambda root: (root / LABELS / "train").rename(root / LABELS / "test"),
        "gtFine: no 'train' folder in it",
    ),
    "empty": (
        lambda root: remove_all(root, IMAGE_END),
        "leftImg8bit/train: no <city>/.*_leftImg8bit.png in it",
    ),
    "empty labels": (lambda root: remove_all(root, LABEL_END), "for any of the 2 images"),
    "raw labels": (
        rename_labels,
        "it has labelIds, but no labelTrainIds; make these with csCreateTrainIdLabelImgs",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_TREES.values(), ids=BAD_TREES.keys())
def test_a_wrong_tree_is_refused_and_says_what_would_help(
    pair: StreetIndex, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(pair.root)
    with pytest.raises(UnreadableError, match=message) as caught:
        check_tree(pair.root)
    assert "\n" not in str(caught.value)


def test_another_place_than_the_root_is_told_from_it(pair: StreetIndex) -> None:
    with pytest.raises(UnreadableError, match=f"give the folder above it: {pair.root}"):
        check_tree(pair.root / IMAGES)
    with pytest.raises(UnreadableError, match="a file, not the folder"):
        check_tree(Path(pair.frames[0].image))
    with pytest.raises(UnreadableError, match="no such folder"):
        check_tree(pair.root / "nowhere")


def test_a_single_missing_file_is_left_to_those_that_read_it(pair: StreetIndex) -> None:
    remove(pair.frames[0].image)
    remove(pair.frames[1].labels)
    with pytest.raises(UnreadableError):
        check_tree(pair.root)  # none is whole
    labels = np.zeros((40, 80), dtype=np.uint8)
    write_frame(pair.root, labels, telling(labels), "train/aachen/aachen_000002_000019")
    assert [frame.image for frame in check_tree(pair.root).frames[:2]] == [
        frame.image for frame in pair.frames
    ]


# The judge


def test_the_truth_itself_has_an_iou_of_one() -> None:
    truth = np.array([[0, 1, 2], [2, 1, IGNORED]])
    confusion = Confusion()
    confusion.add(truth, np.where(truth == IGNORED, 7, truth))
    assert confusion.figures == {"mean_iou": 1.0, "pixel_accuracy": 1.0}


def test_the_iou_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    truth, found = (rng.integers(0, 5, (4, 20, 30)) for _ in range(2))
    truth[rng.random(truth.shape) < 0.1] = IGNORED
    confusion = Confusion()
    for one, other in zip(truth, found, strict=True):
        confusion.add(one, other)
    known = truth != IGNORED
    shares = [
        ((truth == kind) & (found == kind) & known).sum()
        / (((truth == kind) | (found == kind)) & known).sum()
        for kind in range(5)
    ]
    assert confusion.figures["mean_iou"] == pytest.approx(np.mean(shares))
    assert confusion.figures["pixel_accuracy"] == pytest.approx((truth == found)[known].mean())


def test_a_class_found_where_there_is_none_counts_against_the_mean() -> None:
    confusion = Confusion()
    confusion.add(np.zeros((1, 4), dtype=int), np.array([[0, 0, 0, 9]]))
    assert confusion.figures == {"mean_iou": pytest.approx(0.75 / 2), "pixel_accuracy": 0.75}


def test_without_pixels_there_is_no_figure() -> None:
    confusion = Confusion()
    confusion.add(np.full((2, 2), IGNORED), np.zeros((2, 2), dtype=int))
    assert confusion.figures == {}
