"""`explain RUN --at STEP` compares a run with itself; `report` says where it changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.testing import synthetic_trace
from profkit.testing.series import series_trace

MS = 1_000_000
STEPS, AT = 400, 200

Call = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([*map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose forward takes 12 ms longer from step 200 on."""
    random = np.random.default_rng(0)
    forward = 50 * MS * np.exp(0.02 * random.standard_normal(STEPS))
    forward[AT:] += 12 * MS
    phases = {"data": np.full(STEPS, 5.0 * MS), "forward": forward}
    phases["backward"] = np.full(STEPS, 30.0 * MS)
    return series_trace(tmp_path_factory.mktemp("runs") / "changed", phases)


@pytest.mark.parametrize("grows", [True, False])
def test_a_run_whose_batch_changes_is_compared_with_itself(
    call: Call, tmp_path: Path, grows: bool
) -> None:
    """The steps of one batch are fewer, or most; both sides have steps of a batch of their own."""
    random = np.random.default_rng(0)
    forward = 50 * MS * np.exp(0.02 * random.standard_normal(STEPS))
    samples = np.where(np.arange(STEPS) < AT, 16, 32)
    forward *= samples / 16
    run = series_trace(tmp_path / "grown", {"forward": forward}, samples=samples.tolist())
    at = AT if grows else AT // 2
    code, text, error = call("explain", run, "--at", at)
    assert code == ExitCode.DONE, error
    assert f"before step {at}" in " ".join(text.split())


def test_the_report_says_since_when_and_in_which_phase(call: Call, changed: Path) -> None:
    _, text, _ = call("report", changed)
    words = " ".join(text.split())
    assert "Changes during the run" in words
    assert "since step 200 (" in words
    assert "a step takes 14.0 % longer (" in words
    assert "forward +1" in words
    (change,) = json.loads(call("report", changed, "--json")[1])["changes"]
    assert (change["kind"], change["first_step"], change["last_step"]) == ("step", AT, None)
    assert change["phases_ms"]["forward"] == pytest.approx(12, rel=0.05)
    ratio = change["change_ratio"]
    assert ratio["low"] < 12 / 85 < ratio["high"]


def test_a_run_is_compared_with_itself(call: Call, changed: Path) -> None:
    code, text, _ = call("explain", changed, "--at", AT)
    assert code == ExitCode.DONE
    words = " ".join(text.split())
    assert "1 rank: changed before step 200 target" in words
    assert "both sides are parts of one run" in words
    assert "regression" in words
    figures = json.loads(call("explain", changed, "--at", AT, "--json")[1])
    rows = {row["name"]: row["difference_ns"]["value"] for row in figures["rows"]}
    assert rows["forward"] * 32 == pytest.approx(12 * MS, rel=0.05)
    assert abs(rows["backward"]) * 32 < MS


def test_a_gate_applies_to_the_two_parts(call: Call, changed: Path) -> None:
    assert call("explain", changed, "--at", AT, "--gate", "3%")[0] == ExitCode.REGRESSION
    assert call("explain", changed, "--at", 100, "--gate", "forward=20ms")[0] == ExitCode.DONE


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("0", "each side needs 8 steady steps, so it is a step from 18 to 392"),
        ("999999", "each side needs 8 steady steps, so it is a step from 18 to 392"),
        ("x", "a step is a whole number"),
        ("-3", "a step is a whole number"),
        ("1.5", "a step is a whole number"),
        ("²", "a step is a whole number"),
    ],
)
def test_a_step_that_does_not_cut_is_one_clear_line(
    call: Call, changed: Path, step: str, words: str
) -> None:
    code, out, err = call("explain", changed, f"--at={step}")
    assert (code, out) == (ExitCode.USAGE, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_what_cannot_be_compared_with_itself_is_one_clear_line(
    call: Call, changed: Path, tmp_path: Path
) -> None:
    short = synthetic_trace(tmp_path / "short", steps=12)
    log = synthetic_trace(tmp_path / "log", config={"log_of": "x"})
    for arguments, words in (
        ((changed, short), "one run with itself, and 2 are given"),
        ((short,), "each side of --at needs 8"),
        ((log,), "a log has lines"),
        ((changed, "--save-baseline", "main"), "without --save-baseline"),
    ):
        code, out, err = call("explain", *arguments, "--at", "50")
        assert (code, out) == (ExitCode.USAGE, "")
        assert words in err
        assert len(err.splitlines()) == 1
