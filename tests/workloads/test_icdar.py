"""ICDAR2015's tree: the generated set, its reading, and the error for a wrong tree."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from profkit.errors import UnreadableError
from profkit.progress import Progress
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.icdar import FOLDERS, Word, check_tree, read_words
from profkit.workloads.datasets.signs import GeneratedSigns, render

SMALL = GeneratedSigns(train=3, test=2, width=320, height=180)
TRAIN_IMAGES, TRAIN_TRUTHS = FOLDERS["train"]


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture
def tree(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(made, tmp_path / "icdar2015"))


def refusal(path: Path, split: str = "train") -> str:
    with pytest.raises(UnreadableError) as caught:
        check_tree(path, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_made_tree_reads_back_as_it_was_rendered(made: Path) -> None:
    index = check_tree(made)
    assert [Path(scene.path).name for scene in index.scenes] == [
        "img_1.jpg",
        "img_2.jpg",
        "img_3.jpg",
    ]
    assert [scene.words for scene in index.scenes] == [
        render(SMALL, "train", number)[1] for number in (1, 2, 3)
    ]
    assert len(check_tree(made, "test").scenes) == 2


def test_made_again_the_tree_has_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again = generate(SMALL, root=tmp_path, narrate=quiet)
    names = [path.relative_to(made) for path in sorted(made.rglob("*")) if path.is_file()]
    assert names
    assert all((made / name).read_bytes() == (again / name).read_bytes() for name in names)


def test_a_scene_shows_its_words_inside_the_image() -> None:
    image, words = render(GeneratedSigns(), "train", 1)
    assert image.size == (1280, 720)
    assert words
    for word in words:
        x, y = np.array(word.corners).T
        assert 0 <= x.min() < x.max() < 1280
        assert 0 <= y.min() < y.max() < 720


def test_some_words_are_illegible_and_some_have_commas() -> None:
    words = [word for number in range(12) for word in render(SMALL, "train", number)[1]]
    assert 0 < sum(not word.legible for word in words) < len(words) / 2
    assert any("," in word.text for word in words)


def test_files_have_the_published_mark_and_line_ends(made: Path) -> None:
    content = (made / TRAIN_TRUTHS / "gt_img_1.txt").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    assert content.endswith(b"\r\n")


def test_transcriptions_keep_their_commas_and_their_script(tmp_path: Path) -> None:
    file = tmp_path / "gt_img_1.txt"
    file.write_text(
        "\ufeff377,117,463,117,465,130,378,130,Genaxis, Theatre\r\n"
        "0,1,2,3,4,5,6,7,###\r\n-1,1,2,3,4,5,6,7,咖啡\r\n\r\n",
        encoding="utf-8",
    )
    first, second, third = read_words(file)
    assert first == Word(((377, 117), (463, 117), (465, 130), (378, 130)), "Genaxis, Theatre")
    assert (second.legible, third.legible) == (False, True)
    assert third.corners[0] == (-1, 1)


def test_an_image_without_words_is_one_of_the_set(tree: Path) -> None:
    (tree / TRAIN_TRUTHS / "gt_img_2.txt").write_bytes(b"")
    assert check_tree(tree).scenes[1].words == ()


@pytest.mark.parametrize("line", ["1,2,3,4,5,6,7,8", "1,2,3,4,5,6,7,x,word", "word", "1,2,3"])
def test_a_wrong_line_is_told_by_file_and_number(tree: Path, line: str) -> None:
    file = tree / TRAIN_TRUTHS / "gt_img_2.txt"
    file.write_text(f"0,0,9,0,9,9,0,9,good\n{line}\n")
    message = refusal(tree)
    assert f"{file}:2:" in message
    assert line in message


def test_a_file_that_is_no_text_is_told(tree: Path) -> None:
    (tree / TRAIN_TRUTHS / "gt_img_1.txt").write_bytes(b"1,2,3,4,5,6,7,8,\xff\xfe\n")
    assert "gt_img_1.txt: not UTF-8 text" in refusal(tree)


def test_missing_annotations_are_counted(tree: Path) -> None:
    (tree / TRAIN_TRUTHS / "gt_img_3.txt").unlink()
    message = refusal(tree)
    assert "no 'gt_img_3.txt' for img_3.jpg" in message
    assert "1 of 3 images" in message


def test_a_missing_folder_is_named(tree: Path) -> None:
    shutil.rmtree(tree / TRAIN_TRUTHS)
    assert f"{tree}: no '{TRAIN_TRUTHS}' folder in it" in refusal(tree)
    assert check_tree(tree, "test").scenes


def test_an_empty_image_folder_is_named(tree: Path) -> None:
    shutil.rmtree(tree / TRAIN_IMAGES)
    (tree / TRAIN_IMAGES).mkdir()
    assert f"{tree / TRAIN_IMAGES}: no JPEG or PNG files" in refusal(tree)


def test_the_right_folder_is_pointed_out(tree: Path) -> None:
    assert f"give the folder above it: {tree}" in refusal(tree / TRAIN_IMAGES)
    assert f"so give {tree}" in refusal(tree.parent)
    (tree.parent / "flat").mkdir()
    shutil.copy(tree / TRAIN_IMAGES / "img_1.jpg", tree.parent / "flat")
    assert "must lie in folders named as" in refusal(tree.parent / "flat")


def test_no_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "none")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.jpg")
    assert "a file, not the folder" in refusal(tmp_path / "a.jpg")
