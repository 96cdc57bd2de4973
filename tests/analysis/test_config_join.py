"""Differences between two runs are found with the rows that they can affect."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from profkit.analysis.config_join import find_words, join_config
from profkit.testing import synthetic_trace
from profkit.trace import Trace


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
