"""Flags keep their kind wherever their words go."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from profkit.errors import UnreadableError
from profkit.trace.flag import Flag, FlagKind
from profkit.trace.manifest import RunManifest

FLAG = Flag("dropped 7 kernels", FlagKind.BAD_TIMES)


def test_a_run_keeps_kinds(tmp_path: Path) -> None:
    RunManifest("job", flags=(FLAG, Flag("odd"))).write(tmp_path)
    read = RunManifest.read(tmp_path).flags
    assert [(each.kind, each) for each in read] == [
        (FlagKind.BAD_TIMES, "dropped 7 kernels"),
        (FlagKind.DOUBT, "odd"),
    ]


def test_other_words_and_copies_have_the_kind() -> None:
    made = [FLAG.said_as(f"rank 1: {FLAG}"), FLAG.safe, Flag(FLAG)]
    made += [copy.deepcopy(FLAG), pickle.loads(pickle.dumps(FLAG))]
    assert {each.kind for each in made} == {FlagKind.BAD_TIMES}


@pytest.mark.parametrize("content", ['["dropped 7 kernels"]', '[{"kind": "x", "text": "y"}]'])
def test_a_flag_of_no_kind_is_refused_by_name(tmp_path: Path, content: str) -> None:
    RunManifest("job").write(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"flags": []', f'"flags": {content}'))
    with pytest.raises(UnreadableError, match=r"run\.json.*flags"):
        RunManifest.read(tmp_path)
