"""Kinetics' tree of frames: the generated set, reading, errors, and the samples of TSM."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from profkit.errors import UnreadableError, UsageError
from profkit.progress import Progress
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.kinetics import check_tree
from profkit.workloads.datasets.motions import MOTIONS, GeneratedClips
from profkit.workloads.training.samples import BadSampleError, BadSamples, Guarded
from profkit.workloads.tsm.data import CROP_SCALES, Clips, draw_crop, middle_crop, pick_frames

SMALL = GeneratedClips(
    classes=3,
    train_per_class=2,
    val_per_class=1,
    least_frames=8,
    most_frames=11,
    width=85,
    height=64,
)


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


@pytest.fixture
def tree(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(made, tmp_path / "kinetics"))


def refusal(path: Path, split: str = "train") -> str:
    with pytest.raises(UnreadableError) as caught:
        check_tree(path, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


# The tree


def test_a_made_tree_reads_back_whole(made: Path) -> None:
    index = check_tree(made)
    assert (index.classes, len(index.clips), len(check_tree(made, "val").clips)) == (3, 6, 3)
    assert [clip.label for clip in index.clips] == [0, 0, 1, 1, 2, 2]
    for clip in index.clips:
        assert 8 <= clip.frames <= 11
        assert len(list(Path(clip.folder).iterdir())) == clip.frames
        with Image.open(clip.frame(clip.frames)) as image:
            assert image.size == (85, 64)


def test_made_again_the_tree_has_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again = generate(SMALL, root=tmp_path, narrate=quiet)
    names = [path.relative_to(made) for path in sorted(made.rglob("*")) if path.is_file()]
    assert names
    assert all((made / name).read_bytes() == (again / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rising", "falling"),
        ("growing", "shrinking"),
        ("gathering", "parting"),
        ("appearing", "vanishing"),
    ],
)
def test_only_the_order_of_frames_tells_a_motion_from_its_reverse(one: str, other: str) -> None:
    for at in np.linspace(0, 1, 7):
        assert np.allclose(MOTIONS[one](at, 0.4), MOTIONS[other](1 - at, 0.4))


def test_lists_may_be_called_as_other_tools_call_them_and_have_absolute_paths(tree: Path) -> None:
    lines = (tree / "train.list").read_text().splitlines()
    (tree / "train.list").unlink()
    (tree / "train_frames.list").write_text("".join(f"{tree}/{line}\n" for line in lines))
    assert check_tree(tree).clips[0].folder == str(tree / "train/rising/clip_0001")


def test_folders_may_have_spaces(tree: Path) -> None:
    (tree / "train/rising").rename(tree / "train/abseiling off a wall")
    text = (tree / "train.list").read_text()
    (tree / "train.list").write_text(text.replace("rising", "abseiling off a wall"))
    assert Path(check_tree(tree).clips[0].folder).parent.name == "abseiling off a wall"


@pytest.mark.parametrize(
    "line",
    [
        "train/rising/clip_0001",
        "train/rising/clip_0001 8",
        "train/rising/clip_0001 8 x",
        "train/rising/clip_0001 8 -1",
    ],
)
def test_a_wrong_line_is_told_by_file_and_number(tree: Path, line: str) -> None:
    with (tree / "train.list").open("a") as file:
        file.write(line + "\n")
    assert f"{tree}/train.list:7: not 'folder frames label': {line}" in refusal(tree)


def test_a_clip_without_frames_is_told(tree: Path) -> None:
    (tree / "train.list").write_text("train/rising/clip_0001 0 1\n")
    assert "train.list:1: a clip without frames" in refusal(tree)


def test_a_missing_and_an_empty_list_are_told(tree: Path) -> None:
    (tree / "val.list").unlink()
    assert f"{tree}: no 'val.list' in it (lines of: folder frames label)" in refusal(tree, "val")
    (tree / "train.list").write_text("\n")
    assert "train.list: no clips in it" in refusal(tree)


def test_missing_clips_are_counted_and_wrong_paths_explained(tree: Path) -> None:
    shutil.rmtree(tree / "train/falling/clip_0002")
    message = refusal(tree)
    assert (
        f"no folder {tree}/train/falling/clip_0002 (1 of the 6 checked clips are missing; 6 in all)"
        in message
    )
    assert "absolute" not in message
    shutil.rmtree(tree / "train")
    assert "its paths must be absolute, or relative to the folder of the list" in refusal(tree)


def test_a_label_that_training_has_not_is_told(tree: Path) -> None:
    (tree / "val.list").write_text("val/rising/clip_0001 8 5\n")
    assert "label 5 of" in refusal(tree, "val")


def test_the_right_folder_is_pointed_out(tree: Path) -> None:
    assert f"{tree} has one, so give that" in refusal(tree / "train")
    assert f"{tree} has one, so give that" in refusal(tree.parent)
    assert "it holds the frames of one clip" in refusal(tree / "train/rising/clip_0001")
    assert "no such folder" in refusal(tree / "none")
    assert "a file, not the folder" in refusal(tree / "train.list")


def test_a_set_with_more_classes_than_there_are_motions_is_refused() -> None:
    with pytest.raises(UsageError, match="1 to 10 classes"):
        GeneratedClips(classes=11)


# The samples


def clips_of(
    root: Path, policy: str = "error", split: str = "train", *, training: bool = True
) -> Clips:
    return Clips(check_tree(root, split), BadSamples(policy), 8, 32, 0, training=training)


def test_a_sample_depends_on_its_key_alone(made: Path) -> None:
    one, other = clips_of(made), clips_of(made)
    other[1, 4]
    for key in ((0, 0), (3, 5)):
        frames, label = one[key]
        again, same = other[key]
        assert (frames.shape, frames.dtype.name, label) == ((8, 3, 32, 32), "float32", same)
        assert np.array_equal(frames, again)
    assert not np.array_equal(one[0, 0][0], one[1, 0][0])


def test_evaluation_is_the_same_in_every_epoch(made: Path) -> None:
    clips = clips_of(made, split="val", training=False)
    assert np.array_equal(clips[0, 1][0], clips[7, 1][0])


def test_one_frame_is_picked_from_each_segment() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        picked = pick_frames(83, 8, rng)
        assert all(
            10 * segment < frame <= 10 * segment + 10 for segment, frame in enumerate(picked)
        )
    assert pick_frames(80, 8, None) == [5, 15, 25, 35, 45, 55, 65, 75]
    assert pick_frames(8, 8, rng) == pick_frames(8, 8, None) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert pick_frames(3, 8, rng) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_crops_lie_inside_the_frame_and_have_the_published_scales() -> None:
    rng = np.random.default_rng(0)
    boxes = {draw_crop(rng, (340, 256), 224) for _ in range(2000)}
    sides = [224 if scale == 0.875 else int(256 * scale) for scale in CROP_SCALES]
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 340
        assert 0 <= top < bottom <= 256
        assert abs(sides.index(right - left) - sides.index(bottom - top)) <= 1
    assert {right - left for left, _, right, _ in boxes} == set(sides)
    assert middle_crop((340, 256)) == (58, 16, 282, 240)


def test_a_missing_frame_ends_the_job_by_name(tree: Path) -> None:
    (tree / "train/rising/clip_0001/img_00001.jpg").unlink()
    with pytest.raises(
        BadSampleError, match=r"clip_0001/img_00001\.jpg: not a whole image: No such file"
    ):
        clips_of(tree, training=False)[0, 0]


def test_a_missing_frame_is_padded_to_the_size_of_its_neighbours(tree: Path) -> None:
    whole, _ = clips_of(tree, training=False)[0, 0]
    (tree / "train/rising/clip_0001/img_00001.jpg").unlink()
    clips = clips_of(tree, "pad", training=False)
    padded, _ = clips[0, 0]
    assert np.array_equal(padded[1:], whole[1:])
    assert np.abs(padded[0]).max() < 0.05
    assert [Path(bad.path).name for bad in clips.bad.news()] == ["img_00001.jpg"]


def test_a_truncated_frame_has_another_clip_take_its_place(tree: Path) -> None:
    file = tree / "train/rising/clip_0001/img_00001.jpg"
    file.write_bytes(file.read_bytes()[:700])
    clips = clips_of(tree, "skip", training=False)
    sample = Guarded(clips, clips.bad)[0, 0]
    assert np.array_equal(sample[0], clips[0, 1][0])  # type: ignore[index]
    assert [bad.path for bad in clips.bad.news()] == [str(file)]


def test_a_clip_of_which_nothing_is_there_is_padded_too(tree: Path) -> None:
    shutil.rmtree(tree / "train/rising/clip_0001")
    (tree / "train/rising/clip_0001").mkdir()
    frames, _ = clips_of(tree, "pad")[0, 0]
    assert np.abs(frames).max() < 0.05
