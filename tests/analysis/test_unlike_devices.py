"""The devices of runs whose settings do not state them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.explain.explained import explain
from profkit.frame.device_times import device_of
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import RANK_FILE, rank_folder


def unlike(folder: Path, base: dict[str, Any], target: dict[str, Any]) -> list[str]:
    runs = []
    for name, options in (("base", base), ("target", target)):
        runs.append(synthetic_trace(folder / name, ranks=2, steps=30, **options))
    found = explain(Trace.open(runs[0]), Trace.open(runs[1]))
    return [each for each in found.ledger.unlike if each.startswith("unlike device")]


def test_a_run_on_processors_is_not_judged_against_one_on_a_device(tmp_path: Path) -> None:
    found = unlike(tmp_path, {"device": "cpu"}, {"device": "cuda"})
    assert found == ["unlike device: cpu and cuda"]


def test_the_numbers_of_devices_make_no_difference(tmp_path: Path) -> None:
    assert not unlike(tmp_path, {"device": "cuda"}, {"device": "cuda"})


@pytest.mark.parametrize(
    "options",
    [
        {"config": {"imported_from": "a trace"}},
        {"framework": ""},
        {"config": {"imported_from": "a log", "device": "NVIDIA A100"}},
    ],
)
def test_what_nothing_recorded_is_no_difference(tmp_path: Path, options: dict[str, Any]) -> None:
    assert not unlike(tmp_path, {"device": "cpu", **options}, {"device": "cuda"})


def test_settings_count_before_the_ranks(tmp_path: Path) -> None:
    sides = {"config": {"device": "A100"}}, {"config": {"device": "H100"}}
    assert unlike(tmp_path, *sides) == ["unlike device: A100 and H100"]


def test_ranks_on_several_devices_have_none_in_common(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2, steps=4)
    assert device_of(Trace.open(run)) == "cpu"
    file = run / rank_folder(1) / RANK_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "device": "cuda:0"}))
    assert device_of(Trace.open(run)) == ""
    file.unlink()
    assert device_of(Trace.open(run)) == "cpu", "a rank that left no word of it says nothing"
