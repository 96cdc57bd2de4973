"""COCO's tree: the generated set, reading of masks, training samples, and AP."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFilter

from profkit.errors import UnreadableError, UsageError
from profkit.progress import Progress
from profkit.workloads.datasets.coco import CATEGORIES, CocoIndex, Instance, Scene, check_tree
from profkit.workloads.datasets.coco_scenes import IDS, GeneratedScenes, run_lengths
from profkit.workloads.datasets.generated import generate
from profkit.workloads.mask_rcnn.coco_ap import average_precision, describe
from profkit.workloads.mask_rcnn.data import (
    CocoInstances,
    Scaling,
    draw_mask,
    draw_masks,
    find_target,
    mirror,
)
from profkit.workloads.training.samples import BadSampleError, BadSamples, Guarded

pytest.importorskip("pycocotools")

SMALL = GeneratedScenes(train=24, val=4, long_side=160)
SCALING = Scaling(96, 160)


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture(scope="module")
def index(tree: Path) -> CocoIndex:
    return check_tree(tree)


def read_json(tree: Path, split: str = "train") -> Any:
    return json.loads((tree / "annotations" / f"instances_{split}2017.json").read_text())


# The generated set


def test_the_same_recipe_gives_the_same_bytes_twice(tree: Path, tmp_path: Path) -> None:
    again = generate(SMALL, root=tmp_path, narrate=quiet)
    files = [path.relative_to(tree) for path in sorted(tree.rglob("*")) if path.is_file()]
    assert len(files) == SMALL.train + SMALL.val + 2 + 1
    assert all((again / file).read_bytes() == (tree / file).read_bytes() for file in files)


def test_it_is_annotated_in_every_way_that_coco_knows(tree: Path, index: CocoIndex) -> None:
    annotations = read_json(tree)["annotations"]
    kinds = {
        type(annotation["segmentation"].get("counts"))
        if isinstance(annotation["segmentation"], dict)
        else list
        for annotation in annotations
    }
    assert kinds == {list, str}
    assert any(annotation["iscrowd"] for annotation in annotations)
    assert any(
        isinstance(annotation["segmentation"], list) and len(annotation["segmentation"]) == 2
        for annotation in annotations
    )
    assert {scene.size[0] > scene.size[1] for scene in index.scenes} == {True, False}


def test_it_has_as_many_categories_as_coco_with_gaps_in_their_ids(tree: Path) -> None:
    categories = read_json(tree)["categories"]
    assert len({category["name"] for category in categories}) == len(categories) == CATEGORIES
    assert (IDS[0], IDS[-1], len(IDS)) == (1, 90, CATEGORIES)


def test_boxes_and_areas_are_those_of_the_masks(index: CocoIndex, tree: Path) -> None:
    told = {annotation["id"]: annotation for annotation in read_json(tree)["annotations"]}
    assert told
    for scene in index.scenes:
        for instance in scene.instances:
            down, across = np.nonzero(draw_mask(instance.segmentation, scene.size, scene.size))
            left, top, width, height = instance.box
            assert (
                np.abs(
                    np.array(
                        [
                            across.min() - left,
                            top - down.min(),
                            across.max() + 1 - left - width,
                            down.max() + 1 - top - height,
                        ]
                    )
                ).max()
                <= 2
            )


def test_objects_lie_where_they_are_annotated(index: CocoIndex) -> None:
    """Objects have colours, and the ground has none; JPEG bleeds colours over the edges."""
    for scene in index.scenes[:8]:
        pixels = np.asarray(Image.open(scene.path), dtype=int)
        coloured = pixels.max(axis=2) - pixels.min(axis=2) > 60
        masks = Image.fromarray(
            draw_masks(scene.instances, scene.size, scene.size).max(axis=0)
        ).filter(ImageFilter.MaxFilter(9))
        assert not (coloured & ~np.asarray(masks, dtype=bool)).any()


def test_a_set_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one image"):
        GeneratedScenes(train=0)


# Masks


def inside(
    polygon: list[float], size: tuple[int, int]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Brute force: the pixels with centres in the polygon, and those a pixel from its edges."""
    points = np.reshape(polygon, (-1, 2))
    across, down = np.meshgrid(np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5)
    odd, near = np.zeros(across.shape, dtype=bool), np.zeros(across.shape, dtype=bool)
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, axis=0), strict=True):
        crosses = (y0 > down) != (y1 > down)
        with np.errstate(divide="ignore", invalid="ignore"):
            odd ^= crosses & (across < (x1 - x0) * (down - y0) / (y1 - y0) + x0)
        along = np.clip(
            ((across - x0) * (x1 - x0) + (down - y0) * (y1 - y0))
            / max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-9),
            0,
            1,
        )
        near |= np.hypot(across - x0 - along * (x1 - x0), down - y0 - along * (y1 - y0)) <= 1
    return odd, near


@pytest.mark.parametrize("seed", range(8))
def test_polygons_are_filled_as_brute_force_fills_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = (41, 29)
    angles = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 9))))
    polygon = (
        (
            np.stack((np.cos(angles), np.sin(angles)), axis=1)
            * rng.uniform(3, 13, (len(angles), 1))
            + (20, 14)
        )
        .ravel()
        .tolist()
    )
    want, near = inside(polygon, size)
    mask = draw_mask([polygon], size, size).astype(bool)
    assert (mask == want)[~near].all()


def test_polygons_are_scaled_before_they_are_filled() -> None:
    square: list[float] = [2, 2, 8, 2, 8, 8, 2, 8]
    mask = draw_mask([square], (10, 10), (40, 20))
    assert mask.shape == (20, 40)
    assert mask[4:16, 8:32].all()
    assert mask.sum() == 12 * 24


def test_the_parts_of_an_instance_are_united() -> None:
    mask = draw_mask([[0, 0, 4, 0, 4, 4, 0, 4], [6, 6, 9, 6, 9, 9, 6, 9]], (10, 10), (10, 10))
    assert mask.sum() == 16 + 9


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("compressed", [False, True])
def test_run_lengths_are_decoded_to_what_was_encoded(seed: int, compressed: bool) -> None:
    from pycocotools import mask as codec

    rng = np.random.default_rng(seed)
    plane = rng.random((int(rng.integers(1, 40)), int(rng.integers(1, 40)))) < rng.random()
    code = (
        codec.encode(np.asfortranarray(plane, dtype=np.uint8))
        if compressed
        else {"counts": run_lengths(plane), "size": list(plane.shape)}
    )
    onto = (plane.shape[1], plane.shape[0])
    assert (draw_mask(dict(code), onto, onto) == plane).all()


@pytest.mark.parametrize(
    ("plane", "lengths"),
    [
        ([[1, 0], [1, 0]], [0, 2, 2]),
        ([[0, 1], [0, 0]], [2, 1, 1]),
        ([[0, 0]], [2]),
        ([[1]], [0, 1]),
    ],
)
def test_run_lengths_count_down_the_columns_from_the_zeros_on(
    plane: list[list[int]], lengths: list[int]
) -> None:
    assert run_lengths(np.array(plane, dtype=bool)) == lengths


def test_run_lengths_are_scaled_to_the_size_of_training() -> None:
    plane = np.zeros((10, 10), dtype=bool)
    plane[2:8, 2:8] = True
    mask = draw_mask({"counts": run_lengths(plane), "size": [10, 10]}, (10, 10), (40, 20))
    assert mask.shape == (20, 40)
    assert mask[4:16, 8:32].all()
    assert mask.sum() == 12 * 24


# Samples


@pytest.mark.parametrize(
    ("size", "onto"),
    [
        ((640, 480), (1066, 800)),
        ((480, 640), (800, 1066)),
        ((1000, 300), (1333, 400)),
        ((300, 1000), (400, 1333)),
        ((800, 800), (800, 800)),
    ],
)
def test_images_are_scaled_as_published(size: tuple[int, int], onto: tuple[int, int]) -> None:
    assert Scaling(800, 1333).of(size) == onto


def test_samples_depend_on_epoch_index_and_seed_alone(index: CocoIndex) -> None:
    first, second = (CocoInstances(index, SCALING, 0, BadSamples()) for _ in range(2))
    mirrored = []
    for place in range(len(first)):
        image, target = first[1, place]
        again, same = second[1, place]
        assert (image == again).all()
        assert all((target[name] == same[name]).all() for name in target)
        mirrored.append(bool((image != first[2, place][0]).any()))
    assert {True, False} == set(mirrored)


def test_samples_have_the_shapes_and_kinds_that_training_wants(index: CocoIndex) -> None:
    dataset = CocoInstances(index, SCALING, 0, BadSamples())
    for place, scene in enumerate(dataset.scenes):
        image, target = dataset[0, place]
        width, height = SCALING.of(scene.size)
        count = len(target["labels"])
        assert (image.shape, str(image.dtype)) == ((3, height, width), "float32")
        assert 0 <= image.min() <= image.max() <= 1
        assert (target["boxes"].shape, target["boxes"].dtype) == ((count, 4), np.float32)
        assert (target["masks"].shape, target["masks"].dtype) == ((count, height, width), np.uint8)
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
        assert target["labels"].min() >= 1
        assert target["labels"].max() <= CATEGORIES


def test_boxes_lie_around_their_masks_mirrored_or_not(index: CocoIndex) -> None:
    dataset = CocoInstances(index, SCALING, 0, BadSamples())
    for place in range(len(dataset)):
        _, target = dataset[0, place]
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            down, across = np.nonzero(mask)
            assert (
                np.abs(
                    np.array([across.min(), down.min(), across.max() + 1, down.max() + 1]) - box
                ).max()
                <= 3
            )


def test_mirroring_twice_changes_nothing(index: CocoIndex) -> None:
    image, target = CocoInstances(index, SCALING, 0, BadSamples())[0, 0]
    again, same = mirror(*mirror(image, target))
    assert (again == image).all()
    assert np.allclose(same["boxes"], target["boxes"], atol=1e-4)
    assert (same["masks"] == target["masks"]).all()


def test_crowds_and_empty_boxes_are_not_trained_on(index: CocoIndex) -> None:
    square: list[list[float]] = [[1, 1, 5, 1, 5, 5, 1, 5]]
    good, crowd = (Instance(1, (1, 1, 4, 4), square, crowd) for crowd in (False, True))
    flat, bare = (
        Instance(1, (1, 1, 0, 4), square, crowd=False),
        Instance(1, (1, 1, 4, 4), [], crowd=False),
    )
    assert [instance.trains for instance in (good, crowd, flat, bare)] == [
        True,
        False,
        False,
        False,
    ]
    empty = Scene(1, "a.jpg", (10, 10), (crowd, flat))
    full = Scene(2, "b.jpg", (10, 10), (good, crowd))
    dataset = CocoInstances(CocoIndex(Path("x"), (1,), (empty, full)), SCALING, 0, BadSamples())
    assert dataset.scenes == (full,)


def test_upright_scenes_are_batched_apart(index: CocoIndex) -> None:
    dataset = CocoInstances(index, SCALING, 0, BadSamples())
    groups = dataset.groups()
    assert set(groups) == {0, 1}
    assert all(
        (scene.size[1] > scene.size[0]) == bool(group)
        for scene, group in zip(dataset.scenes, groups, strict=True)
    )


# Bad samples


def broken(
    tree: Path, index: CocoIndex, tmp_path: Path, spoil: Callable[[Path], object]
) -> CocoIndex:
    """The index with its first image spoiled."""
    first, *others = [
        scene for scene in index.scenes if any(instance.trains for instance in scene.instances)
    ]
    copy = tmp_path / "spoiled.jpg"
    copy.write_bytes(Path(first.path).read_bytes())
    spoil(copy)
    return CocoIndex(
        index.annotations,
        index.categories,
        (Scene(first.number, str(copy), first.size, first.instances), *others),
    )


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def resave_smaller(path: Path) -> None:
    Image.new("RGB", (7, 5)).save(path)


SPOILS = {"truncated": truncate, "missing": Path.unlink, "another size": resave_smaller}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_a_bad_image_ends_the_job_and_is_named(
    tree: Path, index: CocoIndex, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    dataset = CocoInstances(broken(tree, index, tmp_path, spoil), SCALING, 0, BadSamples())
    with pytest.raises(BadSampleError, match=r"spoiled\.jpg"):
        dataset[0, 0]


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_the_next_one_takes_the_place_of_a_skipped_image(
    tree: Path, index: CocoIndex, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    bad = BadSamples("skip")
    dataset = Guarded(CocoInstances(broken(tree, index, tmp_path, spoil), SCALING, 0, bad), bad)
    sample: Any = dataset[0, 0]
    assert (sample[0] == CocoInstances(index, SCALING, 0, bad)[0, 1][0]).all()
    assert [sample.path.rpartition("/")[2] for sample in bad.news()] == ["spoiled.jpg"]


@pytest.mark.parametrize("spoil", [truncate, Path.unlink], ids=["truncated", "missing"])
def test_a_padded_image_is_grey_and_has_the_annotated_size(
    tree: Path, index: CocoIndex, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    bad = BadSamples("pad")
    dataset = CocoInstances(broken(tree, index, tmp_path, spoil), SCALING, 0, bad)
    image, target = dataset[0, 0]
    assert image.shape[1:] == target["masks"].shape[1:]
    assert image.std(axis=(1, 2)).max() < 1e-6
    assert len(bad.news()) == 1


# Trees that are none


def write_tree(root: Path, **changes: Any) -> Path:
    """A tree of one image with one annotation."""
    (root / "annotations").mkdir(parents=True)
    (root / "train2017").mkdir()
    Image.new("RGB", (10, 8)).save(root / "train2017" / "1.jpg")
    annotation = {
        "id": 7,
        "image_id": 1,
        "category_id": 3,
        "bbox": [1, 1, 4, 4],
        "segmentation": [[1, 1, 5, 1, 5, 5, 1, 5]],
        "iscrowd": 0,
        "area": 16,
    }
    image = {"id": 1, "file_name": "1.jpg", "width": 10, "height": 8}
    content = {
        "images": [image],
        "annotations": [annotation],
        "categories": [{"id": 3, "name": "x"}],
    }
    for path, value in changes.items():
        place, _, name = path.partition("__")
        if name:
            content[place][0][name] = value
        else:
            content[place] = value
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(content))
    return root


def test_a_small_tree_is_read_with_labels_in_the_order_of_ids(tmp_path: Path) -> None:
    index = check_tree(write_tree(tmp_path, categories=[{"id": 5}, {"id": 3}]))
    (scene,) = index.scenes
    assert index.categories == (3, 5)
    assert (scene.path, scene.size) == (str(tmp_path / "train2017" / "1.jpg"), (10, 8))
    assert [(instance.label, instance.box) for instance in scene.instances] == [(1, (1, 1, 4, 4))]


def test_polygons_of_two_points_are_left_out(tmp_path: Path) -> None:
    square = [1, 1, 5, 1, 5, 5, 1, 5]
    index = check_tree(write_tree(tmp_path, annotations__segmentation=[[1, 1, 2, 2], square]))
    assert [list(polygon) for polygon in index.scenes[0].instances[0].segmentation] == [square]


def test_the_files_of_2014_are_found_as_well(tmp_path: Path) -> None:
    write_tree(tmp_path)
    (tmp_path / "annotations" / "instances_train2017.json").rename(
        tmp_path / "annotations" / "instances_train2014.json"
    )
    (tmp_path / "train2017").rename(tmp_path / "train2014")
    assert check_tree(tmp_path).annotations.name == "instances_train2014.json"


BAD_CONTENT = {
    "no list": ({"annotations": None}, "no list 'annotations'"),
    "no image": (
        {"annotations__image_id": 5},
        "annotation 7 is of image 5, which is not in the list of images",
    ),
    "no category": ({"annotations__category_id": 9}, "annotation 7 has category 9"),
    "no bbox": ({"annotations__bbox": None}, "not as COCO's instance files are"),
    "mask of another size": (
        {"annotations__segmentation": {"counts": [80], "size": [10, 8]}},
        r"annotation 7 has a mask of \[10, 8\] in an image of \[8, 10\]",
    ),
    "no size": ({"images__width": None}, "not as COCO's instance files are"),
    "another file": (
        {"images__file_name": "2.jpg"},
        "none of the 1 images .* is in it, the first of them 2.jpg",
    ),
    "crowds alone": ({"annotations__iscrowd": 1}, "no annotation in it that can be trained on"),
    "no images": ({"images": [], "annotations": []}, "the list is empty"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_CONTENT.values(), ids=BAD_CONTENT.keys())
def test_a_bad_annotation_file_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnreadableError, match=message) as caught:
        check_tree(write_tree(tmp_path, **changes))
    assert "\n" not in str(caught.value)


def remove_annotations(root: Path) -> None:
    for file in (root / "annotations").iterdir():
        file.unlink()


def remove_images(root: Path) -> None:
    (root / "train2017" / "1.jpg").unlink()
    (root / "train2017").rmdir()


def cut_json(root: Path) -> None:
    file = root / "annotations" / "instances_train2017.json"
    file.write_bytes(file.read_bytes()[:-5])


BAD_TREES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no annotations": (
        remove_annotations,
        "no instances_train2017.json in it .*unpack annotations_trainval2017.zip",
    ),
    "no images": (remove_images, "no 'train2017' folder in it; unpack train2017.zip there"),
    "cut off": (cut_json, "not whole JSON: .*unpack it again"),
    "another folder": (
        lambda root: (root / "annotations").rename(root / "labels"),
        "no 'annotations' folder in it; COCO's tree has",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_TREES.values(), ids=BAD_TREES.keys())
def test_a_wrong_tree_is_refused_and_says_what_would_help(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(write_tree(tmp_path))
    with pytest.raises(UnreadableError, match=message):
        check_tree(tmp_path)


def test_the_folder_of_the_images_is_told_from_the_root(tmp_path: Path) -> None:
    write_tree(tmp_path)
    with pytest.raises(UnreadableError, match=f"give the folder above it: {tmp_path}"):
        check_tree(tmp_path / "train2017")
    with pytest.raises(UnreadableError, match="a file, not the folder"):
        check_tree(tmp_path / "annotations" / "instances_train2017.json")
    with pytest.raises(UnreadableError, match="no such folder"):
        check_tree(tmp_path / "nowhere")


def test_without_pycocotools_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pycocotools"):
        check_tree(write_tree(tmp_path))


# The judge


def perfect(scene: Scene, scaling: Scaling) -> dict[str, Any]:
    target = find_target(scene, scaling.of(scene.size))
    return {
        **target,
        "masks": target["masks"].astype(np.float32),
        "scores": np.ones(len(target["labels"])),
    }


def judge(index: CocoIndex, scaling: Scaling, *, shift: float = 0.0) -> dict[str, float]:
    found = []
    for scene in index.scenes:
        detections = perfect(scene, scaling)
        detections["boxes"] = detections["boxes"] + shift
        found += describe(scene, index.categories, detections)
    return average_precision(index.annotations, [scene.number for scene in index.scenes], found)


def test_the_truth_itself_has_an_average_precision_of_one(tree: Path) -> None:
    index = check_tree(tree, "val")
    as_on_disk = Scaling(10**6, SMALL.long_side)
    assert judge(index, as_on_disk) == pytest.approx({"box_ap": 1.0, "mask_ap": 1.0}, abs=0.02)


def test_findings_of_scaled_images_are_told_in_pixels_of_the_file(tree: Path) -> None:
    figures = judge(check_tree(tree, "val"), Scaling(160, 300))
    assert figures["box_ap"] > 0.9
    assert figures["mask_ap"] > 0.8


def test_boxes_elsewhere_are_worth_nothing(tree: Path) -> None:
    figures = judge(check_tree(tree, "val"), SCALING, shift=500.0)
    assert figures["box_ap"] == 0
    assert figures["mask_ap"] > 0.5


def test_nothing_found_is_worth_nothing_and_judged_in_silence(
    tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index = check_tree(tree, "val")
    assert average_precision(index.annotations, [scene.number for scene in index.scenes], []) == {
        "box_ap": 0,
        "mask_ap": 0,
    }
    assert capfd.readouterr().out == ""


def test_images_that_were_not_seen_do_not_count(tree: Path) -> None:
    index = check_tree(tree, "val")
    scene = index.scenes[0]
    found = describe(scene, index.categories, perfect(scene, Scaling(10**6, SMALL.long_side)))
    assert average_precision(index.annotations, [scene.number], found)["box_ap"] == pytest.approx(
        1, abs=0.02
    )
    assert average_precision(index.annotations, [], found) == {}
