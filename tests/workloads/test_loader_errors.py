"""A broken image ends a run at once, with the file's name and exit code 3, in every loader."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.image_tree import check_tree
from profkit.workloads.datasets.imagenet import GeneratedSet

PATIENCE_S = 120


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A set with one broken image, and the image's name."""
    tree = GeneratedSet(classes=2, train_per_class=8, val_per_class=1, long_side=64)
    made = generate(tree, root=tmp_path_factory.mktemp("cache"))
    root = Path(shutil.copytree(made, tmp_path_factory.mktemp("broken") / "set"))
    path = Path(check_tree(root).samples[5][0])
    path.write_bytes(path.read_bytes()[:400])
    return root, path.name


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        ("torch", ("--workers", "0")),
        ("torch", ("--workers", "2")),
        ("paddle", ("--workers", "0")),
        ("paddle", ("--workers", "2")),
        ("torch", ("--workers", "1", "--dali")),
    ],
)
def test_the_broken_image_is_named(
    framework: str, options: tuple[str, ...], broken: tuple[Path, str], tmp_path: Path
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    if "--dali" in options and importlib.util.find_spec("nvidia.dali") is None:
        pytest.skip("DALI is not installed")
    root, name = broken
    words = ["trace", "resnet50", "--framework", framework, "--data", str(root), "--steps", "8"]
    words += ["--image-size", "32", "--batch-size", "2", "--output", str(tmp_path), *options]
    done = subprocess.run(
        [sys.executable, "-m", "profkit", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 3, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert f"{name}: not a whole image" in done.stderr
    assert "Traceback" not in done.stderr
    assert sum(name in line for line in lines) == 1
    assert len(lines) <= 8, done.stderr
