"""Reading a run opens no network, builds no pickled class, and starts no process.

It writes no file elsewhere.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.testing import synthetic_trace
from tests.hostile import hostile_run
from tests.scripts import load

WATCHED = """
import json, os, sys
seen = {"socket": [], "pickle": [], "process": [], "written": []}

def watch(event, arguments):
    if event in {"socket.bind", "socket.connect", "socket.listen"}:
        seen["socket"].append(str(arguments[1:]))
    elif event == "pickle.find_class":
        seen["pickle"].append(str(arguments))
    elif event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"}:
        seen["process"].append(event)
    elif event == "open" and isinstance(arguments[2], int):
        path, flags = arguments[0], arguments[2]
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            named = not isinstance(path, int)
            seen["written"].append(os.path.realpath(os.fsdecode(path)) if named else "")
    elif event in {"os.rename", "os.mkdir", "os.symlink", "os.link"}:
        path = arguments[1] if event != "os.mkdir" else arguments[0]
        seen["written"].append(os.path.realpath(os.fsdecode(path)))

sys.addaudithook(watch)
from profkit.cli import main
codes = [main(words) for words in json.loads(sys.argv[1])]
print(json.dumps({**seen, "codes": [str(int(code)) for code in codes]}), file=sys.stderr)
"""

OUTSIDE = "../../outside/%2e%2e/x"


@pytest.fixture
def seen(tmp_path: Path) -> dict[str, list[str]]:
    """Run every command that only reads, on hostile files, and return the observed events."""
    run, hostile = (
        synthetic_trace(tmp_path / "run", ranks=2, steps=40),
        hostile_run(tmp_path / "hostile"),
    )
    (tmp_path / "in").mkdir()
    trace = json.loads(load("trace_samples").kineto())
    trace["traceName"] = f"{OUTSIDE}.json"
    (tmp_path / "in" / "..%2f..%2fx.json").write_text(json.dumps(trace))
    (tmp_path / "in" / "dump.pkl").write_bytes(
        pickle.dumps(load("trace_samples").flight_recorder())
    )
    (tmp_path / "in" / "evil.pkl").write_bytes(pickle.dumps(_Evil()))
    words = [
        ["report", run, "-w", tmp_path / "out" / "run.html"],
        ["explain", run, hostile, "-w", tmp_path / "out" / "gap.md"],
        [
            "export",
            hostile,
            "--format",
            "parquet",
            "--steps",
            "all",
            "-w",
            tmp_path / "out" / "parquet",
        ],
        ["export", hostile, "--format", "csv", "--steps", "all", "-w", tmp_path / "out" / "csv"],
        ["verify", hostile],
        ["why", run],
        ["why", hostile],
        ["history", tmp_path],
        ["explain", "--save-baseline", "main", "--baselines", tmp_path / "out" / "baselines", run],
        ["tui", run, "--screen", "overview", "--json"],
        ["tui", hostile, "--screen", "timeline", "--screenshot", tmp_path / "out" / "timeline.svg"],
        *(
            ["import", path, "-o", tmp_path / "out" / "traces"]
            for path in sorted((tmp_path / "in").iterdir())
        ),
    ]
    (tmp_path / "out").mkdir()
    command = [
        sys.executable,
        "-c",
        WATCHED,
        json.dumps([[str(word) for word in each] for each in words]),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path / "in",
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PROFKIT_CACHE": str(tmp_path / "out" / "cache"),
        },
        check=False,
    )
    told: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return told


class _Evil:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_reading_does_nothing_but_read_and_write_where_it_is_told(
    seen: dict[str, list[str]], tmp_path: Path
) -> None:
    assert seen["socket"] == []
    assert seen["pickle"] == []
    assert seen["process"] == []
    assert len(seen["written"]) > 20
    home = tmp_path.resolve() / "out"
    assert [
        path
        for path in seen["written"]
        if path not in {"", os.devnull} and not Path(path).is_relative_to(home)
    ] == []
    # 3: the pickle that asks for more than data; 11: why a run without a hang stood still
    assert sorted(set(seen["codes"])) == ["0", "11", "3"]
    assert not (tmp_path / "in" / "pwned").exists()


MEETINGS = {
    "barrier",
    "monitored_barrier",
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce_scatter",
    "synchronize",
    "all_gather_object",
    "broadcast_object_list",
}
TOP = Path(__file__).resolve().parents[2]
IN_THE_JOB = [
    path
    for folder in ("instrument", "collectors", "profkit/callbacks", "profkit/run", "profkit/trace")
    for path in (TOP / folder).rglob("*.py")
]


HANDED_ON = {"instrument/frameworks/pytorch/observed_group.py": 2}
"""The reducer's own broadcast and barrier, which the observed process group passes on."""


def test_nothing_in_the_job_meets_other_ranks_or_waits_for_a_device() -> None:
    """No call of ours has such a name; what wraps the job's own calls names them as texts."""
    assert len(IN_THE_JOB) > 30
    found = {
        str(path.relative_to(TOP)): sum(map(_meets, ast.walk(ast.parse(path.read_text()))))
        for path in IN_THE_JOB
    }
    assert {path: calls for path, calls in found.items() if calls} == HANDED_ON


def _meets(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in MEETINGS
    )
