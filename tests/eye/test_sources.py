"""Functions of the job's own code that differ between two runs, by the hashes of their texts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.analysis.code_changes import find_code_changes
from profkit.analysis.config_join import NONE
from profkit.collectors._origins import Origins
from profkit.explain.explained import explain
from profkit.eye.sources import MODULE, Sources, hash_functions
from profkit.hangs.processes import look_at
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.documents import gap_json
from tests.eye.test_eye import JOB
from tests.instrument.test_run_command import PROFKIT_RUN
from tests.recorded import newest_run, run_to_end

SCRIPT = b"""import time
WAIT = 0.01

@decorated
def hook(batch):
    time.sleep(0.01)

    def inner():
        return 1
    return inner

class Net:
    def forward(self, x):
        return x
"""


def changed(edit: tuple[bytes, bytes]) -> set[str]:
    before, after = hash_functions(SCRIPT), hash_functions(SCRIPT.replace(*edit))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("edit", "names"),
    [
        ((b"sleep(0.01)", b"sleep(0.02)"), {"hook"}),
        ((b"WAIT = 0.01", b"WAIT = 0.02"), {MODULE}),
        ((b"return 1", b"return 2"), {"hook.inner"}),
        ((b"return x", b"return -x"), {"Net.forward"}),
        ((b"@decorated", b"@other"), {"hook"}),
        ((b"def forward", b"def call"), {"Net.forward", "Net.call"}),
        ((b"import time\n", b"\n\n\nimport time  \n\n"), set()),
    ],
)
def test_an_edit_is_of_the_innermost_function(edit: tuple[bytes, bytes], names: set[str]) -> None:
    assert changed(edit) == names


def look(folder: Path, file: Path) -> Path:
    """Have a file be seen in a stack of this process."""
    sources = Sources(folder / "host.functions")
    own = os.getpid()
    said: Any = SimpleNamespace(pid=own, started=look_at(own).started_ticks, origins=Origins())
    sources.look([(SimpleNamespace(co_filename=str(file)), 1)], said)  # type: ignore[list-item]
    sources.flush()
    return folder / "host.functions"


def test_only_what_has_not_changed_since_the_job_began_is_known(tmp_path: Path) -> None:
    """The file of this test is older than its process; another is written while it runs."""
    known = look(tmp_path, Path(__file__))
    names = json.loads(known.read_text())["functions"]
    ((file, functions),) = names.items()
    assert file.endswith("tests/eye/test_sources.py")
    assert "changed" in functions
    assert "sleep" not in known.read_text()  # no text of it
    known.unlink()
    for content in (SCRIPT, b"def f(:", b"\0", b"(" * 300_000):
        (tmp_path / "train.py").write_bytes(content)
        assert not look(tmp_path, tmp_path / "train.py").exists()


def make_run(folder: Path, files: dict[str, bytes]) -> Trace:
    trace = Trace.open(synthetic_trace(folder, steps=60))
    (folder / "eye").mkdir()
    content = {"functions": {name: hash_functions(text) for name, text in files.items()}}
    (folder / "eye" / "host-1.functions").write_text(json.dumps(content))
    return trace


def test_edited_functions_are_among_what_differs(tmp_path: Path) -> None:
    """Two checkouts in other folders, of which both use one file of the same folder."""
    edited = SCRIPT.replace(b"sleep(0.01)", b"sleep(0.02)") + b"def new():\n    pass\n"
    shared = {"~/lib/common.py": SCRIPT, "~/lib/sub/more.py": SCRIPT}
    base = make_run(tmp_path / "a", {"/old/train.py": SCRIPT, "/old/m/net.py": SCRIPT, **shared})
    target = make_run(tmp_path / "b", {"/new/train.py": edited, "/new/m/net.py": SCRIPT, **shared})
    found = [each for each in gap_json(explain(base, target))["differences"] if "code" in str(each)]
    assert [each["name"] for each in found] == ["code of train.py:hook", "code of train.py:new"]
    assert found[1]["base"] == NONE
    assert {each["can_affect"] for each in found} == {"any"}
    for damaged in ("{", "[]", '{"functions": 1}', '{"functions": {"a": [1]}}'):
        (target.path / "eye" / "host-1.functions").write_text(damaged)
        assert not list(find_code_changes(base.path, target.path))


def test_a_recorded_job_has_the_functions_of_its_files(tmp_path: Path) -> None:
    run_to_end([*PROFKIT_RUN, sys.executable, JOB, 100, "fork"], tmp_path)
    (known,) = (newest_run(tmp_path).path / "eye").glob("*.functions")
    names = json.loads(known.read_text())["functions"]
    (functions,) = [own for file, own in names.items() if file.endswith(JOB.name)]
    assert functions == hash_functions(JOB.read_bytes())
