"""A flag overrides a variable, the project's file, and the user's file, in this order."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from profkit.cli import Parser, parse
from profkit.commands import trace
from profkit.commands._options import pass_on_collect, pass_on_hang_after
from profkit.commands._trace_options import add_data
from profkit.config import apply_settings
from profkit.errors import UsageError


def _parse(arguments: list[str], environ: dict[str, str], folder: Path) -> argparse.Namespace:
    parser = Parser(prog="profkit trace")
    trace.configure(parser)
    apply_settings(parser, "trace", {"HOME": str(folder / "home"), **environ}, folder)
    return parser.parse_args(["resnet50", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".config" / "profkit").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "profkit" / "config.toml").write_text(
        "[trace]\nsteps = 11\nworkers = 5\nseed = 7\nlr = 0.5\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        "[tool.profkit.trace]\nsteps = 12\nworkers = 6\nseed = 8\n[tool.other]\nx = 1\n"
    )
    (tmp_path / "profkit.toml").write_text(
        '[defaults]\noutput = "runs"\n[trace]\nsteps = 13\nbatch-size = 3\nworkers = 4\n'
    )
    return tmp_path


def test_each_layer_wins_over_the_ones_below(folder: Path) -> None:
    args = _parse(["--steps", "15"], {"PROFKIT_STEPS": "14", "PROFKIT_WORKERS": "9"}, folder)
    assert (args.steps, args.workers, args.batch_size, args.seed, args.lr) == (15, 9, 3, 8, 0.5)
    assert args.output == Path("runs")


def test_a_variable_wins_over_files(folder: Path) -> None:
    assert _parse([], {"PROFKIT_STEPS": "14"}, folder).steps == 14


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--hang-after", "0"),
        ("--hang-after", "90"),
        ("--hang-after", "1.5m"),
        ("--collect", "none", "--lines", "off"),
        ("--kernels", "every:100:3", "--ops"),
    ],
)
def test_ranks_accept_the_variables_that_their_parent_sets(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    args = _parse(list(words), {}, tmp_path)
    pass_on_collect(args)
    pass_on_hang_after(args)
    assert vars(_parse([], dict(os.environ), tmp_path)) == vars(args)


def test_an_empty_variable_says_nothing(folder: Path) -> None:
    assert _parse([], {"PROFKIT_STEPS": ""}, folder).steps == 13


def test_a_switch_can_be_set_by_a_variable(folder: Path) -> None:
    parser = Parser(prog="x")
    parser.add_argument("--fast", action="store_true")
    apply_settings(parser, "trace", {"PROFKIT_FAST": "yes"}, folder / "home")
    assert parser.parse_args([]).fast is True


@pytest.mark.parametrize(("word", "value"), [("0", False), ("no", False), ("1", True)])
def test_a_switch_with_two_flags_can_be_set_by_a_variable(
    word: str, value: bool, tmp_path: Path
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--autotune", action=argparse.BooleanOptionalAction)
    apply_settings(parser, "trace", {"PROFKIT_AUTOTUNE": word}, tmp_path)
    assert parser.parse_args([]).autotune is value


@pytest.mark.parametrize(("word", "device"), [("1", "cpu"), ("off", ""), ("gpu", "gpu")])
def test_dali_can_be_set_as_in_earlier_versions(word: str, device: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_data(parser)
    apply_settings(parser, "trace", {"PROFKIT_DALI": word}, tmp_path)
    assert parser.parse_args([]).dali == device


def test_other_verbs_share_only_the_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "home" / ".config"))
    assert parse(["report"]).output == Path("runs")


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            "profkit.toml",
            "[trace]\nsteps = 'many'",
            "profkit.toml: [trace] steps: 'many' is not a whole number",
        ),
        (
            "profkit.toml",
            "[trace]\nbatchsize = 1",
            "profkit.toml: [trace] has no option 'batchsize'; did you mean 'batch_size'?",
        ),
        ("profkit.toml", "[trace", "profkit.toml: not valid TOML"),
        ("profkit.toml", "trace = 1", "profkit.toml: 'trace' must be a table"),
        (
            "pyproject.toml",
            "[tool.profkit.trace]\nsteps = 0",
            "pyproject.toml: [trace] steps: 0 is out of range",
        ),
        ("pyproject.toml", "[tool]\nprofkit = 3", "pyproject.toml: 'tool.profkit' must be a table"),
    ],
)
def test_a_wrong_value_says_where_it_stands(
    tmp_path: Path, file: str, content: str, told: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError) as error:
        _parse([], {}, tmp_path)
    assert told in str(error.value)


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="environment variable PROFKIT_STEPS: 'x' is not a whole number"
    ):
        _parse([], {"PROFKIT_STEPS": "x"}, tmp_path)
