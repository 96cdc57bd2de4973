"""Differences between two runs are found with the rows that they can affect."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.config_join import (
    BY_CHANCE,
    HARMLESS,
    find_unlike,
    find_words,
    join_config,
)
from profkit.testing import synthetic_trace
from profkit.trace import RunManifest, Trace


def test_where_the_ranks_of_a_launch_meet_is_no_setting(tmp_path: Path) -> None:
    manifest = Trace.open(synthetic_trace(tmp_path / "run", steps=12)).manifest
    sides = (
        dataclasses.replace(
            manifest,
            environment={
                "variables": {
                    "PADDLE_MASTER": f"127.0.0.1:{port}",
                    "PADDLE_TRAINER_ENDPOINTS": f"127.0.0.1:{port}",
                    "NCCL_ALGO": algorithm,
                }
            },
        )
        for port, algorithm in ((4001, "Ring"), (4002, "Tree"))
    )
    assert [each.name for each in join_config(*sides)] == ["variables.NCCL_ALGO"]


@pytest.mark.parametrize(
    ("base", "target", "shown"),
    [
        ("python train.py --lr 0.1 -b 8", "python train.py --lr 0.1 -b 16", ("-b 8", "-b 16")),
        ("train.py --amp", "train.py", ("--amp", "none")),
        ("train.py x", "train.py x --workers 2", ("none", "--workers 2")),
        ("a.py --b=1 c --d 2", "a.py --b=2 c --d 3", ("--b=1 ... --d 2", "--b=2 ... --d 3")),
    ],
)
def test_of_a_command_the_words_that_differ_are_shown(
    base: str, target: str, shown: tuple[str, str]
) -> None:
    assert find_words(base.split(), target.split()) == shown


def test_long_commands_are_not_cut_where_they_are_alike(tmp_path: Path) -> None:
    words = ["python", "a/long/path/to/train.py", *(f"--option{number}" for number in range(9))]
    sides = []
    for size in ("8", "16"):
        manifest = Trace.open(synthetic_trace(tmp_path / size, steps=4)).manifest
        config = {**manifest.config, "command": [*words, "--batch_size", size]}
        sides.append(dataclasses.replace(manifest, config=config))
    (found,) = (each for each in join_config(*sides) if each.name == "command")
    assert (found.base, found.target) == ("--batch_size 8", "--batch_size 16")


def _sides(*configs: dict[str, Any], names: Sequence[str] = ("", "")) -> list[RunManifest]:
    sides = []
    for name, config in zip(names, configs, strict=True):
        sides.append(RunManifest(workload=name, framework="torch", config=config))
    return sides


@pytest.mark.parametrize(
    ("base", "target", "is_alike"),
    [
        ("python train.py --lr 1", "python jobs/train.py --lr 2", True),
        ("torchrun train.py", "python -m torch.distributed.run train.py", True),
        ("python -m project.train", "python -m project.train --fast", True),
        ("python -m torch.distributed.run -m a.train", "torchrun -m a.train", True),
        ("python train.py", "python other.py", False),
        ("python -m torch.distributed.run -m a.train", "torchrun -m a.other", False),
        ("./job", "./job", False),
    ],
)
def test_runs_of_one_script_may_have_any_name(base: str, target: str, is_alike: bool) -> None:
    """`profkit run --name` names a run; two names are no two jobs."""
    sides = _sides({"command": base.split()}, {"command": target.split()}, names=("old", "new"))
    assert bool(find_unlike(*sides)) != is_alike
    (named,) = (each for each in join_config(*sides) if each.name == "workload")
    assert (named.rows in HARMLESS) == is_alike


def test_shapes_that_vary_are_neither_told_apart_nor_called_harmless() -> None:
    known = {"batch_shapes": "8x40x60, 8", "batch_shapes_distinct": 5}
    sides = _sides(known, {**known, "batch_shapes": "8x40x199, 8"})
    (found,) = join_config(*sides)
    assert found.rows == BY_CHANCE
    assert not any(found.can_affect(row) for row in ("data", "forward", "unknown"))


@pytest.mark.parametrize(("elements", "can_affect"), [(30_000, True), (20_900, False)])
def test_the_mean_size_of_batches_tells_if_it_surely_differs(
    elements: int, can_affect: bool
) -> None:
    known = {"batch_elements": 20_000, "batch_elements_error": 400.0}
    (found,) = join_config(*_sides(known, {**known, "batch_elements": elements}))
    assert found.can_affect("forward") == can_affect
    assert (found.rows in HARMLESS) != can_affect


def test_where_ranks_meet_makes_no_other_job() -> None:
    sides = []
    for port, place in (("29617", "a:1"), ("29637", "b:2")):
        words = [
            "torchrun",
            "--master-port",
            port,
            f"--rdzv-endpoint={place}",
            "train.py",
            "--lr",
            "1",
        ]
        sides.append(RunManifest(workload="job", config={"command": words}))
    assert not [each for each in join_config(*sides) if each.name == "command"]
