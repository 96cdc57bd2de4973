"""The runs that come with the project: whole, small, and readable on any machine.

They contain nothing about the machine that recorded them.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.kernels.view import kernels_of
from profkit.analysis.overview import build_overview
from profkit.analysis.views.code import build_code_view
from profkit.analysis.views.loader import build_loader_view
from profkit.analysis.views.ranks import build_ranks_view
from profkit.explain.explained import explain
from profkit.explain.verdict import Verdict
from profkit.trace import Trace, verify
from profkit.trace.jsonfile import read_json
from profkit.vocab import Integrity

TRACES = Path(__file__).parents[2] / "traces"
RECORDED = sorted(TRACES.glob("recorded-*"))
MOST_BYTES = 3_000_000
MOST_BYTES_OF_ONE = 600_000

OF_A_MACHINE = re.compile(
    r"/(?:home|root|work|tmp|Users|mnt|srv|opt)\b|@\w+\.\w+|\b\d{1,3}(?:\.\d{1,3}){3}\b"
)
"""Paths, addresses and names of hosts."""

named = pytest.mark.parametrize("run", RECORDED, ids=lambda run: run.name)


def test_there_are_some_and_they_are_small() -> None:
    assert len(RECORDED) >= 4
    sizes = [
        sum(file.stat().st_size for file in run.rglob("*") if file.is_file()) for run in RECORDED
    ]
    assert max(sizes) < MOST_BYTES_OF_ONE
    assert sum(sizes) < MOST_BYTES


@named
def test_each_is_whole_also_on_a_machine_of_another_name(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    found = verify(run)
    assert (found.state, found.lost, found.dropped, found.reasons) == (Integrity.COMPLETE, 0, 0, ())


@named
def test_each_has_steps_phases_and_kernels(run: Path) -> None:
    trace = Trace.open(run)
    view = build_overview(trace)
    assert view.judged
    assert {"data", "forward", "backward", "optimizer"} <= {part.name for part in view.phases}
    assert view.quality == ()
    if "--kernels" in _row_of(run):
        assert kernels_of(trace).calls > 100
    assert build_loader_view(trace).makers


def test_one_has_two_ranks_that_wait_for_each_other() -> None:
    view = build_ranks_view(Trace.open(TRACES / "recorded-resnet50-2-ranks"))
    assert len(view.ranks) == 2
    assert view.waits
    assert view.sizes


def test_the_buckets_of_each_step_are_resnet50s_gradients_to_the_byte() -> None:
    sums = (
        Trace.open(TRACES / "recorded-resnet50-2-ranks")
        .collectives.group_by(["rank", "step"])
        .aggregate([("bytes", "sum")])
    )
    below, classes = 23_508_032, 10
    assert set(sums["bytes_sum"].to_pylist()) == {4 * (below + (2048 + 1) * classes)}


@named
def test_nothing_of_the_machine_is_in_them_but_its_kind(run: Path) -> None:
    for text in _texts(run):
        assert not OF_A_MACHINE.search(text), text


def _texts(run: Path) -> Iterator[str]:
    for rank in Trace.open(run).ranks:
        yield from rank.names.to_pylist()
    for file in run.rglob("*.json"):
        yield from _words(read_json(file))


def _words(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        yield from content
        content = list(content.values())
    if isinstance(content, list):
        for value in content:
            yield from _words(value)
    elif isinstance(content, str):
        yield content


def test_the_readme_names_each_with_its_command() -> None:
    for run in RECORDED:
        # On a GPU it is one job, whose command stands above; its options are in the row.
        assert re.search(r"`(profkit (trace|run) |--)", _row_of(run))


def _row_of(run: Path) -> str:
    lines = (TRACES / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if f"`{run.name}`" in line)
    return line


def test_one_has_the_lines_of_a_loop_and_of_its_workers() -> None:
    trace = Trace.open(TRACES / "recorded-plain-loop")
    view = build_code_view(trace, None)
    files = {row.line.place.file.rpartition("/")[2] for row in view.rows}
    assert "plain_loop.py" in files
    assert any(flame.boxes for flame in view.flames)
    assert trace.worker_stacks.num_rows


@pytest.mark.parametrize(
    ("base", "target", "verdict"),
    [("2", "0", Verdict.REGRESSION), ("0", "2", Verdict.IMPROVEMENT)],
)
def test_the_first_comparison_of_a_newcomer_has_a_verdict_and_its_cause(
    base: str, target: str, verdict: Verdict
) -> None:
    before, after = (
        Trace.open(TRACES / f"recorded-resnet50-workers-{each}") for each in (base, target)
    )
    view = explain(before, after)
    assert view.ledger.verdict is verdict
    assert [cause.kind for cause in view.causes][:1] == ["input_bound"]
    assert view.causes[0].is_gain == (verdict is Verdict.IMPROVEMENT)
