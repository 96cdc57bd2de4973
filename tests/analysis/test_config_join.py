"""Differences between two runs are found with the rows that they can affect."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from profkit.analysis.config_join import join_config
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
