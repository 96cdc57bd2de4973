"""The output of `profkit explain` for two or more runs: text, JSON, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.frame.estimate import Estimate
from profkit.testing import synthetic_trace
from profkit.text import WIDTH

MS = 1_000_000
HOSTILE = "\x1b]0;owned\x07\u202e" + "long " * 30

Explain = Callable[..., "tuple[int, str]"]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    def call(*arguments: object) -> tuple[int, str]:
        code = main(["explain", *map(str, arguments)])
        return code, capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    kinds: dict[str, dict[str, Any]] = {
        "base": {},
        "again": {"seed": 1},
        "starved": {"seed": 2, "phase_ns": {"data": 9 * MS}, "config": {"workers": 0}},
        "short": {"steps": 12},
        "two": {"ranks": 2, "seed": 3},
        "late": {"ranks": 2, "seed": 4, "buckets": 1, "rank_phase_ns": {1: {"forward": 24 * MS}}},
        "gpu": {"seed": 5, "config": {"device": "cuda:0"}},
        "evaluating": {"seed": 6, "phase_ns": {"other": 3 * MS}},
        "hostile": {
            "seed": 7,
            "workload": HOSTILE,
            "config": {HOSTILE: HOSTILE, "device": HOSTILE},
        },
    }
    return {
        name: synthetic_trace(
            folder / name, **{"steps": 150, "config": {"device": "cpu", "workers": 2}, **options}
        )
        for name, options in kinds.items()
    }


def _figures(explain: Explain, *arguments: object) -> Any:
    return json.loads(explain(*arguments, "--json")[1])


def _causes(figures: Any) -> list[str]:
    return [found["kind"] for found in figures["causes"]]


def test_the_cause_stands_first_with_its_cost_and_what_to_try(
    explain: Explain, runs: dict[str, Path]
) -> None:
    figures = _figures(explain, runs["base"], runs["starved"])
    assert figures["verdict"] == "regression"
    assert _causes(figures) == ["input_bound"], "the setting that differs is part of its evidence"
    found = figures["causes"][0]
    assert found["cost_ns_per_step"]["low"] < 7 * MS < found["cost_ns_per_step"]["high"]
    assert found["share_of_gap"] == pytest.approx(1, abs=0.1)
    assert "workers 2 and 0" in found["evidence"]
    assert "num_workers" in found["remedy"]


def test_text_and_json_tell_the_same(explain: Explain, runs: dict[str, Path]) -> None:
    code, text = explain(runs["base"], runs["starved"], "--all")
    figures = _figures(explain, runs["base"], runs["starved"])
    assert code == ExitCode.DONE
    assert "Regression: a sample takes" in text
    assert all(f"\n  {row['name']} " in text for row in [*figures["rows"], figures["total"]])
    assert sum(row["difference_ns"]["value"] for row in figures["rows"]) == pytest.approx(
        figures["total"]["difference_ns"]["value"], abs=1
    )


def test_a_run_and_its_repeat_are_neutral_and_nothing_else_differs(
    explain: Explain, runs: dict[str, Path]
) -> None:
    _, text = explain(runs["base"], runs["again"])
    figures = _figures(explain, runs["base"], runs["again"])
    assert (figures["verdict"], figures["causes"], figures["nothing_else_differs"]) == (
        "neutral",
        [],
        True,
    )
    assert "Nothing else that both runs recorded differs" in text


def test_a_late_rank_is_named_with_its_phase(explain: Explain, runs: dict[str, Path]) -> None:
    found = _figures(explain, runs["two"], runs["late"])["causes"][0]
    assert found["kind"] == "late_rank"
    assert "in forward on rank 1" in found["evidence"]


def test_exposed_communication_of_more_ranks(explain: Explain, runs: dict[str, Path]) -> None:
    figures = _figures(explain, runs["base"], runs["two"])
    assert _causes(figures)[0] == "exposed_communication"
    assert "ranks: 1 and 2" in figures["caveats"]


def test_evaluation_charged_to_training(explain: Explain, runs: dict[str, Path]) -> None:
    assert _causes(_figures(explain, runs["base"], runs["evaluating"])) == [
        "evaluation_in_training"
    ]


def test_unlike_devices_are_not_judged(explain: Explain, runs: dict[str, Path]) -> None:
    figures = _figures(explain, runs["base"], runs["gpu"])
    assert figures["verdict"] == "cannot judge"
    assert "unlike device: cpu and cuda" in figures["why_not_judged"]


@pytest.mark.parametrize(
    ("target", "gates", "code"),
    [
        ("starved", ["3%"], ExitCode.REGRESSION),
        ("starved", ["data=4ms"], ExitCode.REGRESSION),
        ("starved", ["data=8ms", "30%"], ExitCode.DONE),
        ("again", ["3%"], ExitCode.DONE),
        ("short", ["3%"], ExitCode.NOT_JUDGED),
        ("again", ["allreduce=4ms"], ExitCode.NOT_JUDGED),
        ("gpu", ["3%"], ExitCode.NOT_JUDGED),
        ("starved", ["allreduce=4ms", "3%"], ExitCode.REGRESSION),
        ("starved", ["3 percent"], ExitCode.USAGE),
    ],
)
def test_gates(
    explain: Explain, runs: dict[str, Path], target: str, gates: list[str], code: ExitCode
) -> None:
    assert (
        explain(runs["base"], runs[target], *(word for gate in gates for word in ("--gate", gate)))[
            0
        ]
        == code
    )


def test_more_runs_are_a_scaling_table(explain: Explain, runs: dict[str, Path]) -> None:
    code, text = explain(runs["base"], runs["two"], runs["late"])
    rows = _figures(explain, runs["base"], runs["two"], runs["late"])["runs"]
    assert code == ExitCode.DONE
    assert [row["ranks"] for row in rows] == [1, 2, 2]
    assert "load balance" in text
    assert (
        rows[2]["factors_ratio"]["load balance"]["value"]
        < 0.95
        < rows[2]["factors_ratio"]["data"]["value"]
    )


def test_a_gate_takes_two_runs(explain: Explain, runs: dict[str, Path]) -> None:
    assert explain(runs["base"], runs["two"], runs["late"], "--gate", "3%")[0] == ExitCode.USAGE


@pytest.mark.parametrize("target", ["again", "starved", "short", "late", "hostile", "gpu"])
def test_the_screen_fits_and_steers_no_terminal(
    explain: Explain, runs: dict[str, Path], target: str
) -> None:
    for _, text in (
        explain(runs["base"], runs[target], "--gate", "3%"),
        explain(runs["base"], runs[target], runs["two"]),
    ):
        assert max(map(len, text.splitlines())) <= WIDTH
        assert text.replace("\n", "").isprintable()
        assert "\u202e" not in text


def test_a_side_without_a_steady_step_is_shown_and_not_judged(
    explain: Explain, runs: dict[str, Path], tmp_path: Path
) -> None:
    warming = synthetic_trace(
        tmp_path / "warming", steps=8, config={"device": "cpu", "warmup": 100}
    )
    for pair in ((runs["base"], warming), (warming, runs["base"])):
        code, text = explain(*pair, "--gate", "3%")
        assert code == ExitCode.NOT_JUDGED
        assert "no steps" in text
        assert "has 0 used steps" in text
        assert _figures(explain, *pair)["time_is_per"] == "sample and rank"


def test_what_switching_profkit_off_shows_is_in_text_and_json(
    explain: Explain, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row has what can be counted; below the rows stands all of it, where both runs tried."""
    cost = Estimate(200_000.0, 100_000.0, 300_000.0)
    monkeypatch.setattr("profkit.frame.run_frame.switched_cost", lambda steps, warm_up: cost)
    _, text = explain(runs["base"], runs["again"], "--all")
    assert (
        "profkit itself in total, measured with control steps (recording off): 200 us and 200 us, "
        "spread over the rows; difference 0 s (95 % interval" in " ".join(text.split())
    )
    figures = _figures(explain, runs["base"], runs["again"])
    assert "profkit itself" in [row["name"] for row in figures["rows"]]
    assert figures["profkit_in_all"]["base_ns"]["value"] * figures[
        "samples_per_step_and_gpu"
    ] == pytest.approx(200_000)
