"""The generated ImageNet set, the cache that holds it, and the reading of real trees."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from profkit.cache import MANIFEST, Recipe, cache_root, ensure, find_damage
from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.progress import Progress, ProgressBar, bar_line
from profkit.testing import FakeClock
from profkit.workloads.datasets import imagenet as _imagenet
from profkit.workloads.datasets.generated import Picture, generate
from profkit.workloads.datasets.image_tree import check_tree
from profkit.workloads.datasets.imagenet import (
    GeneratedSet,
    class_ids,
    encode,
    render,
)

PATIENCE_S = 120
SMALL = GeneratedSet(classes=3, train_per_class=4, val_per_class=2, long_side=64)
RECIPE = Recipe("letters", {"count": 2})


def quiet(what: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


def write_letters(folder: Path, progress: Progress) -> None:
    (folder / "deep").mkdir()
    for done, name in enumerate(("a.txt", "deep/b.txt"), start=1):
        (folder / name).write_text(name)
        progress(done, 2)


def ensure_letters(root: Path, make: Callable[[Path, Progress], None] = write_letters) -> Path:
    return ensure(RECIPE, make, root=root, narrate=quiet)


def refuse(folder: Path, progress: Progress) -> None:
    raise AssertionError("a whole set is made again")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SMALL, root=tmp_path_factory.mktemp("cache"), narrate=quiet)


# The images


def test_the_same_recipe_gives_the_same_bytes_twice(tree: Path, tmp_path: Path) -> None:
    again = generate(SMALL, root=tmp_path, narrate=quiet)
    assert again != tree
    assert contents(again) == contents(tree)


def test_an_image_made_alone_is_the_one_in_the_set(tree: Path) -> None:
    wnid = class_ids(SMALL.classes, SMALL.seed)[1]
    assert (
        encode(SMALL, Picture("train", 1, 2))
        == (tree / "train" / wnid / f"{wnid}_3.JPEG").read_bytes()
    )


def test_every_image_and_every_seed_differ() -> None:
    files = [encode(SMALL, picture) for picture in SMALL.pictures()]
    assert len(set(files)) == len(files)
    assert encode(replace(SMALL, seed=1), Picture("train", 0, 0)) not in files


def test_a_larger_set_holds_the_smaller_ones_training_images(tree: Path, tmp_path: Path) -> None:
    larger = generate(replace(SMALL, classes=4, train_per_class=5), root=tmp_path, narrate=quiet)
    small, large = contents(tree / "train"), contents(larger / "train")
    assert small.items() < large.items()


def test_full_size_images_are_as_large_as_imagenets() -> None:
    files = [encode(GeneratedSet(), Picture("train", label, 0)) for label in range(10)]
    sizes = [Image.open(io.BytesIO(file)).size for file in files]
    assert all(50_000 < len(file) < 160_000 for file in files)
    assert all(450 <= max(size) <= 500 and min(size) >= 300 for size in sizes)
    assert len(set(sizes)) > 1


def test_some_images_stand_upright() -> None:
    sizes = [render(SMALL, Picture("train", 0, number)).size for number in range(40)]
    assert 0 < sum(height > width for width, height in sizes) < 20


def features(image: Image.Image) -> npt.NDArray[np.float64]:
    """Mean colour and strength of each direction in the spectrum, to see hue and grating."""
    colour = np.asarray(image.resize((8, 8)), dtype=np.float64).mean(axis=(0, 1)) / 255
    grey = np.asarray(image.convert("L").resize((64, 64)), dtype=np.float64)
    power = np.abs(np.fft.fftshift(np.fft.fft2(grey - grey.mean())))
    down, across = np.mgrid[-32:32, -32:32]
    direction = (np.arctan2(down, across) % np.pi * 8 / np.pi).astype(int) % 8
    strength = np.bincount(direction.ravel(), power.ravel(), 8)
    return np.concatenate([colour, strength / strength.sum()])


def test_the_class_of_unseen_images_can_be_learnt() -> None:
    spec = GeneratedSet(train_per_class=10, val_per_class=6, long_side=160)
    centres = np.stack(
        [
            np.mean(
                [features(render(spec, Picture("train", label, number))) for number in range(10)],
                axis=0,
            )
            for label in range(10)
        ]
    )
    unseen = [picture for picture in spec.pictures() if picture.split == "val"]
    guesses = [
        np.linalg.norm(centres - features(render(spec, picture)), axis=1).argmin()
        for picture in unseen
    ]
    assert (
        np.mean([guess == picture.label for guess, picture in zip(guesses, unseen, strict=True)])
        > 0.5
    )


def test_no_two_classes_look_alike() -> None:
    looks = [_imagenet.class_look(label) for label in range(_imagenet.MAX_CLASSES)]
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 0},
        {"classes": 10_000},
        {"train_per_class": 0},
        {"val_per_class": 0},
        {"long_side": 4},
    ],
)
def test_a_set_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        GeneratedSet(**wrong)


def test_the_smallest_images_can_be_made() -> None:
    tiny = replace(SMALL, long_side=16)
    assert all(len(encode(tiny, picture)) for picture in tiny.pictures())


# The layout


def test_files_are_named_and_counted_as_imagenets(tree: Path) -> None:
    ids = class_ids(3, 0)
    names = set(contents(tree)) - {MANIFEST, "train_list.txt", "val_list.txt"}
    assert {name for name in names if name.startswith("train")} == {
        f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in ids for number in (1, 2, 3, 4)
    }
    assert sorted(name.split("/")[2] for name in names if name.startswith("val")) == [
        f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 7)
    ]
    assert all((tree / name).read_bytes().startswith(b"\xff\xd8\xff") for name in names)


def test_class_ids_are_sorted_and_have_eight_digits() -> None:
    ids = class_ids(_imagenet.MAX_CLASSES, 0)
    assert list(ids) == sorted(set(ids))
    assert all(wnid[0] == "n" and wnid[1:].isdigit() and len(wnid) == 9 for wnid in ids)


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_list_files_agree_with_the_tree(tree: Path, split: str) -> None:
    listed = {
        tuple(line.split(" ")) for line in (tree / f"{split}_list.txt").read_text().splitlines()
    }
    found = {
        (Path(path).relative_to(tree).as_posix(), str(label))
        for path, label in check_tree(tree, split).samples
    }
    assert listed == found


# The cache


def test_a_set_is_made_once_and_used_again(tmp_path: Path) -> None:
    folder = ensure_letters(tmp_path)
    assert folder.parent == tmp_path / "data"
    assert contents(folder).keys() == {MANIFEST, "a.txt", "deep/b.txt"}
    assert ensure_letters(tmp_path, refuse) == folder


def test_another_recipe_is_another_folder(tmp_path: Path) -> None:
    other = ensure(Recipe("letters", {"count": 3}), write_letters, root=tmp_path, narrate=quiet)
    assert other != ensure_letters(tmp_path)


def test_the_manifest_holds_digests_that_sha256sum_accepts(tmp_path: Path) -> None:
    folder = ensure_letters(tmp_path)
    assert find_damage(folder, RECIPE, full=True) is None
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--quiet", MANIFEST], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda folder: (folder / "a.txt").unlink(), "a.txt is missing"),
        (
            lambda folder: (folder / "deep" / "b.txt").write_text("b"),
            "deep/b.txt has 1 bytes instead of 10",
        ),
        (lambda folder: (folder / MANIFEST).unlink(), "CHECKSUM cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text(""), "CHECKSUM is damaged"),
        (lambda folder: (folder / MANIFEST).write_bytes(b"\xff\n\xff"), "CHECKSUM cannot be read"),
        (lambda folder: os.truncate(folder / MANIFEST, 90), "CHECKSUM is damaged"),
    ],
)
def test_a_damaged_set_is_told_and_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], object], told: str
) -> None:
    folder = ensure_letters(tmp_path)
    whole = contents(folder)
    harm(folder)
    assert ensure_letters(tmp_path) == folder
    assert capsys.readouterr().err == f"{folder}: {told}; making it again\n"
    assert contents(folder) == whole
    assert os.listdir(folder.parent) == [folder.name]


def test_a_file_in_the_place_of_the_set_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "data" / RECIPE.folder_name
    place.parent.mkdir()
    place.write_text("in the way")
    assert find_damage(ensure_letters(tmp_path), RECIPE, full=True) is None


def test_changed_content_of_the_same_size_is_found_by_the_full_check(tmp_path: Path) -> None:
    folder = ensure_letters(tmp_path)
    (folder / "a.txt").write_text("other")
    assert find_damage(folder, RECIPE) is None
    assert find_damage(folder, RECIPE, full=True) == "a.txt has another content"


def test_the_second_of_two_makers_uses_the_firsts_set(tmp_path: Path) -> None:
    inodes = []

    def overtaken(folder: Path, progress: Progress) -> None:
        inodes.append(ensure_letters(tmp_path).stat().st_ino)
        write_letters(folder, progress)

    folder = ensure_letters(tmp_path, overtaken)
    assert folder.stat().st_ino == inodes[0]
    assert os.listdir(folder.parent) == [folder.name]


def test_makers_at_once_end_well_on_an_absent_and_on_a_damaged_set(tmp_path: Path) -> None:
    for _ in range(2):
        together = threading.Barrier(4)

        def make(folder: Path, progress: Progress, together: threading.Barrier = together) -> None:
            together.wait(PATIENCE_S)
            write_letters(folder, progress)

        threads = [threading.Thread(target=ensure_letters, args=(tmp_path, make)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        folder = ensure_letters(tmp_path, refuse)
        assert os.listdir(folder.parent) == [folder.name]
        (folder / "a.txt").unlink()


def test_two_processes_at_once_end_with_one_whole_set(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; "
        "from profkit.workloads.datasets.generated import generate; "
        "from profkit.workloads.datasets.imagenet import GeneratedSet; "
        f"print(generate(GeneratedSet(3, 4, 2, 64), root=Path({str(tmp_path)!r})))"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = {maker.communicate(timeout=PATIENCE_S)[0].strip() for maker in makers}
    assert [maker.returncode for maker in makers] == [0, 0]
    folder = tmp_path / "data" / SMALL.recipe.folder_name
    assert told == {str(folder)}
    assert find_damage(folder, SMALL.recipe, full=True) is None
    assert os.listdir(folder.parent) == [folder.name]


def test_a_cache_that_cannot_be_written_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfkitError) as caught:
        ensure_letters(tmp_path / "file" / "cache")
    message = str(caught.value)
    assert str(tmp_path / "file" / "cache") in message
    assert message.endswith(
        "cannot be made: Not a directory; set PROFKIT_CACHE to a folder with room"
    )
    assert "\n" not in message


def test_a_full_disk_leaves_no_partial_folder(tmp_path: Path) -> None:
    def fill_the_disk(folder: Path, progress: Progress) -> None:
        write_letters(folder, progress)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        ProfkitError, match="No space left on device; set PROFKIT_CACHE to a folder with room"
    ):
        ensure_letters(tmp_path, fill_the_disk)
    assert os.listdir(tmp_path / "data") == []


def test_a_full_disk_among_the_writing_threads_leaves_no_partial_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(ProfkitError, match="No space left on device"):
        generate(SMALL, root=tmp_path, narrate=quiet)
    assert os.listdir(tmp_path / "data") == []


def test_an_interrupt_leaves_no_partial_folder(tmp_path: Path) -> None:
    def interrupt(folder: Path, progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_letters(tmp_path, interrupt)
    assert os.listdir(tmp_path / "data") == []


def test_what_a_killed_maker_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = (tmp_path / "data" / f".{RECIPE.folder_name}.{age}" for age in ("old", "new"))
    for left in (old, new):
        left.mkdir(parents=True)
    os.utime(old, (0, 0))
    ensure_letters(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"PROFKIT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/profkit")),
        ({"XDG_CACHE_HOME": "b"}, Path.home() / ".cache" / "profkit"),
        ({"PROFKIT_CACHE": ""}, Path.home() / ".cache" / "profkit"),
    ],
)
def test_the_environment_says_where_the_cache_is(variables: dict[str, str], root: Path) -> None:
    assert cache_root(variables) == root


def test_a_relative_cache_folder_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_root({"PROFKIT_CACHE": "here"}) == tmp_path / "here"


def test_no_home_folder_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ProfkitError, match="set PROFKIT_CACHE"):
        cache_root({})


# The progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_at_the_start_and_one_at_the_end() -> None:
    clock, stream = FakeClock(), io.StringIO()
    with ProgressBar("making 640 JPEG files in PATH", stream, clock) as progress:
        progress(320, 640)
        clock.now_ns += 6_200_000_000
    assert (
        stream.getvalue()
        == "making 640 JPEG files in PATH ...\nmaking 640 JPEG files in PATH ... done in 6.2 s\n"
    )


def test_on_a_terminal_one_line_is_drawn_over() -> None:
    clock, stream = FakeClock(), Terminal()
    with ProgressBar("making", stream, clock) as progress:
        for done in range(1, 5):
            clock.now_ns += 60_000_000
            progress(done, 4)
    assert stream.getvalue().count("\n") == 1
    assert [counts in stream.getvalue() for counts in ("1/4", "2/4", "3/4", "4/4")] == [
        False,
        True,
        False,
        True,
    ]


def test_a_failure_is_not_told_as_done() -> None:
    stream = io.StringIO()
    with pytest.raises(OSError, match="full"), ProgressBar("making", stream, FakeClock()):
        raise OSError("full")
    assert "stopped after" in stream.getvalue()
    assert "done" not in stream.getvalue()


def test_a_narrow_terminal_keeps_the_figures() -> None:
    assert (
        bar_line("making files in a folder far away", 50, 100, 50)
        == "making file... [##########----------] 50/100  50 %"
    )
    assert bar_line("making", 0, 0, 80).endswith("100 %")


# Real trees


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def complaint(path: Path, split: str = "train") -> str:
    with pytest.raises(UnreadableError) as caught:
        check_tree(path, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_classes_and_images_are_in_sorted_order(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "train/n2/b.JPEG",
        "train/n10/a.jpg",
        "train/n2/a.PNG",
        "train/n10/c.Jpeg",
        "train/n10/notes.txt",
        "train/README",
    )
    index = check_tree(tmp_path)
    assert index.classes == ("n10", "n2")
    assert [(Path(path).name, label) for path, label in index.samples] == [
        ("a.jpg", 0),
        ("c.Jpeg", 0),
        ("a.PNG", 1),
        ("b.JPEG", 1),
    ]


def as_torchvision(folder: Path) -> list[tuple[str, int]]:
    """Do the same as torchvision's `make_dataset`, which takes six seconds to import."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    walks = (
        (label, walk)
        for label, name in enumerate(classes)
        for walk in sorted(os.walk(folder / name, followlinks=True))
    )
    return [
        (os.path.join(root, file), label)
        for label, (root, _, files) in walks
        for file in sorted(files)
    ]


def test_the_order_is_torchvisions(tree: Path) -> None:
    assert list(check_tree(tree, "val").samples) == as_torchvision(tree / "val")


def test_a_validation_split_has_the_class_indices_of_train(tmp_path: Path) -> None:
    touch(tmp_path, "train/n1/a.JPEG", "train/n2/a.JPEG", "val/n2/b.JPEG")
    assert check_tree(tmp_path, "val").samples == ((str(tmp_path / "val" / "n2" / "b.JPEG"), 1),)


def test_a_path_that_is_missing_is_said(tmp_path: Path) -> None:
    assert complaint(tmp_path / "nowhere") == f"{tmp_path}/nowhere: no such folder"


def test_a_path_that_is_a_file_is_said(tmp_path: Path) -> None:
    assert "a file, not the folder" in complaint(touch(tmp_path, "set.tar") / "set.tar")


def test_a_missing_split_folder_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"{tmp_path}: no 'train' folder in it"
    assert (
        complaint(touch(tmp_path, "train/n1/a.JPEG"), "val") == f"{tmp_path}: no 'val' folder in it"
    )


@pytest.mark.parametrize("split", ["train", "val"])
def test_being_given_the_train_folder_itself_is_said(tmp_path: Path, split: str) -> None:
    touch(tmp_path, f"{split}/n1/a.JPEG")
    assert f"it is the '{split}' folder itself; give the folder above it: {tmp_path}" in complaint(
        tmp_path / split
    )


def test_the_current_folder_being_the_train_folder_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "train/n1/a.JPEG")
    monkeypatch.chdir(tmp_path / "train")
    assert f"give the folder above it: {tmp_path}" in complaint(Path())


def test_class_folders_without_a_train_folder_are_said(tmp_path: Path) -> None:
    assert "which must lie in a folder 'train'" in complaint(touch(tmp_path, "n1/a.JPEG"))


def test_empty_class_folders_are_named_and_counted(tmp_path: Path) -> None:
    touch(tmp_path, "train/n1/a.JPEG", "train/n2/notes.txt", "train/n3/notes.txt")
    assert (
        complaint(tmp_path)
        == f"{tmp_path}/train: no JPEG or PNG files in class folder 'n2' (2 of 3 folders have none)"
    )


def test_an_empty_train_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert complaint(tmp_path) == f"{tmp_path}/train: no class folders in it; it is empty"


def test_a_validation_folder_without_class_folders_is_said(tmp_path: Path) -> None:
    touch(tmp_path, "train/n1/a.JPEG", "val/ILSVRC2012_val_00000001.JPEG")
    assert complaint(tmp_path, "val").endswith(
        "no class folders in it; its images must lie in one folder per class"
    )


def test_a_validation_class_that_train_lacks_is_said(tmp_path: Path) -> None:
    touch(tmp_path, "train/n1/a.JPEG", "val/n2/b.JPEG")
    assert "class folder 'n2' is not in 'train'" in complaint(tmp_path, "val")


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "train/n1/a.JPEG")

    def forbid(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", forbid)
    assert complaint(tmp_path) == f"{tmp_path}/train: cannot be read: Permission denied"


def test_the_module_loads_neither_torch_nor_pillow() -> None:
    script = (
        "import sys, profkit.workloads.datasets.imagenet; "
        "print(sorted({'torch', 'PIL', 'paddle'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_progress_counts_every_image(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    SMALL.write(tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == [(done, 18) for done in range(1, 19)]
