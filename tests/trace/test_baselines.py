"""Named baselines are compared exactly as they were saved, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.cli import main
from profkit.errors import ExitCode, UnreadableError, UsageError
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.trace.baselines import find_baseline, past_of, save_baseline

MS = 1_000_000
Call = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["explain", "--baselines", str(tmp_path / "kept"), *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    kinds: dict[str, dict[str, Any]] = {
        "good": {},
        "again": {"seed": 1},
        "slow": {"seed": 2, "phase_ns": {"data": 9 * MS}},
        "other": {"seed": 3, "config": {"device": "cuda:0"}},
    }
    return {
        name: synthetic_trace(
            folder / name, **{"steps": 120, "config": {"device": "cpu"}, **options}
        )
        for name, options in kinds.items()
    }


def test_a_gate_compares_with_what_was_kept_although_the_run_is_gone(
    explain: Call, runs: dict[str, Path], tmp_path: Path
) -> None:
    own = Path(shutil.copytree(runs["good"], tmp_path / "own"))
    code, said, narration = explain("--save-baseline", "main", own)
    assert (code, said) == (ExitCode.DONE, "")
    assert narration.startswith("baseline main is now ")
    shutil.rmtree(own)
    assert explain("--baseline", "main", runs["again"], "--gate", "3%")[0] == ExitCode.DONE
    assert explain("--baseline", "main", runs["slow"], "--gate", "3%")[0] == ExitCode.REGRESSION
    assert explain("--baseline", "main", runs["other"], "--gate", "3%")[0] == ExitCode.NOT_JUDGED


def test_a_target_takes_the_name_only_when_it_has_passed(
    explain: Call, runs: dict[str, Path], tmp_path: Path
) -> None:
    explain("--save-baseline", "main", runs["good"])
    before = find_baseline(tmp_path / "kept", "main")
    explain("--baseline", "main", runs["slow"], "--gate", "3%", "--save-baseline", "main")
    assert find_baseline(tmp_path / "kept", "main") == before
    explain("--baseline", "main", runs["again"], "--gate", "3%", "--save-baseline", "main")
    after = find_baseline(tmp_path / "kept", "main")
    assert Trace.open(after).steps.equals(Trace.open(runs["again"]).steps)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(
        [after.name, "main.json"]
    )


def test_saving_the_same_run_again_changes_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    assert save_baseline(tmp_path, "main", runs["good"]) == save_baseline(
        tmp_path, "main", runs["good"]
    )
    find_baseline(tmp_path, "main")


def test_a_baseline_that_is_missing_is_named_with_what_there_is(
    explain: Call, runs: dict[str, Path]
) -> None:
    code, said, narration = explain("--baseline", "main", runs["good"])
    assert (code, said, narration.count("\n")) == (ExitCode.UNREADABLE, "", 1)
    assert "there is no baseline 'main'; save one with" in narration
    explain("--save-baseline", "mean", runs["good"])
    assert (
        "did you mean 'mean'? (there are: mean)" in explain("--baseline", "main", runs["good"])[2]
    )


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


_HARMS: dict[str, Callable[[Path, Path], object]] = {
    "a bit flipped": lambda copy, pointer: _flip(copy / "r00000" / "steps.arrows"),
    "cut": lambda copy, pointer: os.truncate(copy / "r00000" / "spans.arrows", 100),
    "a file gone": lambda copy, pointer: (copy / "r00000" / "end.json").unlink(),
    "a file more": lambda copy, pointer: (copy / "r00000" / "kernels.arrows").write_bytes(b"x"),
    "all gone": lambda copy, pointer: shutil.rmtree(copy),
    "the pointer cut": lambda copy, pointer: os.truncate(pointer, 30),
    "the pointer without sums": lambda copy, pointer: pointer.write_text(
        json.dumps({**json.loads(pointer.read_text()), "sha256": None})
    ),
    "the pointer leading out": lambda copy, pointer: pointer.write_text(
        pointer.read_text().replace(copy.name, f"../{copy.name}")
    ),
    "a link for a file": lambda copy, pointer: _link(copy / "run.json", copy.parent / "elsewhere"),
}


@pytest.mark.parametrize("harm", _HARMS.values(), ids=_HARMS)
def test_a_baseline_that_was_changed_is_refused(
    explain: Call, runs: dict[str, Path], tmp_path: Path, harm: Callable[[Path, Path], object]
) -> None:
    explain("--save-baseline", "main", runs["good"])
    harm(find_baseline(tmp_path / "kept", "main"), tmp_path / "kept" / "main.json")
    code, said, narration = explain("--baseline", "main", runs["again"], "--gate", "3%")
    assert (code, said, narration.count("\n")) == (ExitCode.UNREADABLE, "", 1)
    assert "kept" in narration
    assert explain("--save-baseline", "main", runs["good"])[0] == ExitCode.DONE


def test_a_damaged_file_of_a_baseline_is_kept_with_its_history(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    save_baseline(folder, "main", runs["good"], {"ns_per_sample": 1.0})
    content = (folder / "main.json").read_text()
    (folder / "main.json").write_text(content[:-20])
    save_baseline(folder, "main", runs["good"], {"ns_per_sample": 2.0})
    assert (folder / "main.json.damaged").read_text() == content[:-20]
    assert past_of(folder, "main") == [{"ns_per_sample": 2.0}]


def test_a_torn_run_makes_no_baseline(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["good"], tmp_path / "run"))
    os.truncate(run / "r00000" / "steps.arrows", 500)
    with pytest.raises(UnreadableError, match="is torn and makes no baseline"):
        save_baseline(tmp_path / "kept", "main", run)
    assert not (tmp_path / "kept").exists()


def test_links_in_a_run_are_not_followed(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["good"], tmp_path / "run"))
    (tmp_path / "secret").write_text("secret")
    (run / "r00000" / "notes").symlink_to(tmp_path / "secret")
    assert not (save_baseline(tmp_path / "kept", "main", run) / "r00000" / "notes").exists()


@pytest.mark.parametrize(
    "name", ["../main", "a/b", "", ".hidden", "x" * 65, "a b", "-flag", "main\n"]
)
def test_a_name_is_no_path(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a baseline"):
        save_baseline(tmp_path / "kept", name, runs["good"])
    with pytest.raises(UsageError, match="is no name for a baseline"):
        find_baseline(tmp_path / "kept", name)


def test_a_folder_that_cannot_be_written_is_one_line(
    explain: Call, runs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("a file")
    code, _, narration = explain("--save-baseline", "main", runs["good"])
    assert (code, narration.count("\n")) == (ExitCode.UNFINISHED, 1)
    assert "the baseline 'main' was not saved" in narration


@pytest.mark.parametrize(
    "arguments",
    [
        ["good"],
        ["--baseline", "main"],
        ["--gate", "3%", "good"],
        ["good", "--gate", "3%", "--save-baseline", "main"],
    ],
)
def test_one_run_is_not_compared(
    explain: Call, runs: dict[str, Path], arguments: list[str]
) -> None:
    code, _, narration = explain(*(runs.get(word, word) for word in arguments))
    assert code == ExitCode.USAGE
    assert narration.count("\n") == 1


def _in_folder(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder / "only")
    return folder


def _as_group(run: Path, folder: Path) -> Path:
    copy = Path(shutil.copytree(run, folder / "smoke-20260101-000000"))
    content = json.loads((copy / "run.json").read_text())
    content["config"]["repeats"] = {"group": "smoke", "number": 1, "of": 1, "session": "s"}
    (copy / "run.json").write_text(json.dumps(content))
    return folder / "smoke"


@pytest.mark.parametrize("name", [lambda run, folder: run, _in_folder, _as_group])
def test_each_name_of_one_run_makes_a_baseline(
    explain: Call, runs: dict[str, Path], tmp_path: Path, name: Callable[[Path, Path], Path]
) -> None:
    """What is compared is saved, whatever the words that name it."""
    run = name(runs["again"], tmp_path / "traces")
    explain("--save-baseline", "main", runs["good"])
    for words in (("--baseline", "main", "--gate", "3%"), ()):
        code, _, narration = explain(*words, "--save-baseline", "main", run)
        assert code == ExitCode.DONE, narration
        kept = json.loads((tmp_path / "kept" / "main.json").read_text())
        assert len(kept["past"]) == 2
        assert Path(kept["saved_from"]).name in {"again", "only", "smoke-20260101-000000"}
        assert f"is now {kept['saved_from']}, " in narration, "it names the run, not the folder"
        assert Trace.open(tmp_path / "kept" / kept["run"]).steps.num_rows == 120


@pytest.mark.parametrize("words", [[], ["--baseline", "main"]])
@pytest.mark.parametrize("steps", [0, 12])
def test_a_run_without_a_figure_makes_no_baseline(
    explain: Call, runs: dict[str, Path], tmp_path: Path, words: list[str], steps: int
) -> None:
    """Nothing could be compared with it: each later gate would be inconclusive."""
    if words:
        explain("--save-baseline", "main", runs["good"])
    run = synthetic_trace(tmp_path / "run", steps=12, config={"device": "cpu", "warmup": 12})
    if not steps:
        shutil.rmtree(run / "r00000")
    code, _, narration = explain(*words, "--save-baseline", "main", run)
    assert (code, narration.count("\n")) == (ExitCode.UNREADABLE, 1)
    assert narration.startswith(f"profkit: {run}: ")
    if words:
        kept = json.loads((tmp_path / "kept" / "main.json").read_text())
        assert Path(kept["saved_from"]).name == "good"
    else:
        assert not (tmp_path / "kept").exists()


def test_a_folder_of_one_run_is_compared_with_published_figures(
    explain: Call, runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = _in_folder(runs["good"], tmp_path / "traces")
    figures = tmp_path / "figures.csv"
    figures.write_text("no figures\n")
    errors = [explain(run, "--published", figures)[2] for run in (runs["good"], folder)]
    assert errors[0] == errors[1]
    several = f"{runs['good']},{runs['again']}"
    code, _, narration = explain(several, "--published", figures)
    assert code == ExitCode.USAGE
    assert "--published takes one run" in narration


def test_repeats_make_no_baseline(explain: Call, runs: dict[str, Path]) -> None:
    code, _, narration = explain("--save-baseline", "main", f"{runs['good']},{runs['again']}")
    assert code == ExitCode.USAGE
    assert "keeps one run" in narration
