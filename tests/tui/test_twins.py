"""Every figure on a screen is in the JSON of the screen, with the same digits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.show import json as show_json
from profkit.tui import headless
from profkit.tui.app import load_screens
from tests.tui.driving import shown
from tests.tui.figures import body_of, figures_of, top_of_strip, unknown_figures

SIZE = (200, 50)


def _twin(run: Path, screen: str, *bases: Path) -> Any:
    return json.loads(show_json.dumps(headless.twin(run, screen, bases)))


@pytest.mark.parametrize("run", ["one", "two"])
def test_overview(folder: Path, run: str) -> None:
    twin = _twin(folder / run, "overview")
    own, step_ms = twin["own_cost_ms_per_step"], twin["step_ms"]["value"]
    shares = [own["hooks"] / step_ms, (own["total"] - own["hooks"]) / step_ms]
    text = body_of(shown(folder / run, size=SIZE))
    assert len(figures_of(text)) > 30
    assert unknown_figures(text, [twin, *shares]) <= {top_of_strip(text)}


def test_explain(folder: Path) -> None:
    """The JSON is per sample and GPU, and has the factor to the screen's figures per step."""
    twin = _twin(folder / "slow", "explain", folder / "two")
    per_step = twin["samples_per_step_and_gpu"]
    speeds = [1e9 * 2 / twin["total"][f"{side}_ns"]["value"] for side in ("base", "target")]
    kernels = [row["target_ns"] - row["base_ns"] for row in twin["kernels"]["rows"]]
    text = body_of(shown(folder / "slow", bases=[folder / "two"], screen="explain", size=SIZE))
    assert len(figures_of(text)) > 30
    assert unknown_figures(text, [twin, speeds, kernels, 1, 2], (1.0, per_step)) == set()


def test_explain_of_more_runs(series: Path) -> None:
    """The screen shows the scaling and the ledger of the first pair, per step of its base."""
    bases = [series / "one", series / "two", series / "again"]
    twin = _twin(series / "four", "explain", *bases)
    pair = twin["pairs"][0]
    speeds = [
        1e9 * ranks / pair["total"][f"{side}_ns"]["value"]
        for side, ranks in (("base", 1), ("target", 2))
    ]
    kernels = [row["target_ns"] - row["base_ns"] for row in pair["kernels"]["rows"]]
    text = body_of(shown(series / "four", bases=bases, screen="explain", size=SIZE))
    assert len(figures_of(text)) > 50
    assert (
        unknown_figures(
            text, [twin["runs"], pair, speeds, kernels, 1], (1.0, pair["samples_per_step_and_gpu"])
        )
        == set()
    )


def test_the_twin_of_more_runs_is_what_explain_prints_of_them(
    series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["one", "two", "four"]
    assert main(["explain", "--json", *(str(series / name) for name in names)]) == ExitCode.DONE
    scaling = json.loads(capsys.readouterr().out)
    twin = _twin(series / "four", "explain", series / "one", series / "two")
    assert twin["runs"] == scaling["runs"]
    assert [(pair["base"], pair["target"]) for pair in twin["pairs"]] == [
        ("one", "two"),
        ("one", "four"),
        ("two", "four"),
    ]
    for pair in twin["pairs"]:
        assert (
            main(["explain", "--json", str(series / pair["base"]), str(series / pair["target"])])
            == ExitCode.DONE
        )
        assert pair == json.loads(capsys.readouterr().out)


def test_repeats_of_two_sides_are_pooled_as_explain_pools_them(
    series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["explain", "--json", str(series / "four"), f"{series / 'two'},{series / 'again'}"])
        == ExitCode.DONE
    )
    twin = _twin(series / "again", "explain", series / "four", series / "two")
    assert twin == json.loads(capsys.readouterr().out)
    assert twin["target"].endswith("and 1 repeat")


def test_runs(folder: Path) -> None:
    twin = headless.runs_twin(folder)
    half_widths = [
        (each["high"] - each["low"]) / 2 / each["value"]
        for each in (run["throughput_samples_per_s"] for run in twin["runs"])
    ]
    began = [list(time.localtime(run["created_ns"] / 1e9)[1:5]) for run in twin["runs"]]
    text = body_of(shown(folder, size=SIZE))
    assert len(figures_of(text)) > 10
    assert unknown_figures(text, [twin, half_widths, began]) == set()


def test_live(folder: Path) -> None:
    text = body_of(shown(folder / "two", screen="live", size=SIZE))
    assert len(figures_of(text)) > 10
    assert unknown_figures(text, _twin(folder / "two", "live")) <= {top_of_strip(text)}


@pytest.mark.parametrize("screen", load_screens())
def test_every_screen_has_a_twin(folder: Path, screen: str) -> None:
    """The output is a JSON object or list without NaN or infinity."""
    assert _twin(folder / "two", screen, folder / "slow")
