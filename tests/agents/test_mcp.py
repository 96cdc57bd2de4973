"""The tools for coding agents, called by the package's own client over a real process."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit import cli
from profkit.agents.answers import open_root
from profkit.errors import ProfkitError, UsageError
from profkit.testing import synthetic_trace
from tests.hostile import UNSAFE, hostile_run

TOOLS = {"runs", "report", "explain", "whatif", "why"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, one of them too short to judge, and a run outside of it."""
    folder = tmp_path_factory.mktemp("agents")
    traces = folder / "traces"
    late: dict[str, Any] = {"seed": 1, "phase_ns": {"data": 9_000_000}}
    synthetic_trace(traces / "base", ranks=2, steps=60)
    synthetic_trace(traces / "target", ranks=2, steps=60, **late)
    synthetic_trace(traces / "short", ranks=2, steps=4)
    synthetic_trace(folder / "secret", steps=20)
    (traces / "link").symlink_to(folder / "secret")
    return traces


def ask(root: Path, questions: Callable[[Any], Any]) -> Any:
    """Start `profkit mcp` as an agent does, and ask it."""
    mcp = pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")
    anyio = pytest.importorskip("anyio")
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "profkit", "mcp", "--root", str(root)],
        env={**os.environ},
    )

    async def talk() -> Any:
        with tempfile.TemporaryFile("w") as said:
            async with (
                stdio_client(server, errlog=said) as streams,
                mcp.ClientSession(*streams) as session,
            ):
                await session.initialize()
                return await questions(session)

    return anyio.run(talk)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    cli.main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_client_gets_what_the_verbs_print(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = {
        "runs": {},
        "report": {"run": "base"},
        "explain": {"base": "base", "target": "target"},
        "whatif": {"run": "base", "change": "link", "value": 2},
        "why": {"run": "base"},
    }

    async def questions(session: Any) -> Any:
        tools = (await session.list_tools()).tools
        answers = {name: await session.call_tool(name, given) for name, given in calls.items()}
        return tools, answers, await session.call_tool("report", {"run": "short"})

    tools, answers, short = ask(root, questions)
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.open_world_hint is False
    found = {name: answer.structured_content for name, answer in answers.items()}
    assert not any(answer.is_error for answer in answers.values())
    assert {row["run"] for row in found["runs"]["runs"]} == {"base", "target", "short"}
    base, target = str(root / "base"), str(root / "target")
    assert found["report"] == printed(capsys, "report", base)
    assert found["explain"] == printed(capsys, "explain", base, target)
    predicted = printed(capsys, "whatif", base, "--link", "2x")
    assert found["whatif"]["predictions"] == predicted["predictions"]
    assert found["why"] == printed(capsys, "why", base)
    assert found["explain"]["causes"]
    assert short.structured_content["verdict"] == "cannot judge"


def test_a_client_reads_nothing_outside_of_the_root_and_nothing_that_is_missing(
    root: Path,
) -> None:
    names = ["../secret", "link", "/etc", "a\0b", "x" * 5000]

    async def questions(session: Any) -> Any:
        outside = [await session.call_tool("report", {"run": name}) for name in names]
        missing = {"base": "bsae", "target": "target"}
        return outside, await session.call_tool("explain", missing)

    outside, missing = ask(root, questions)
    for answer in outside:
        assert answer.is_error
        assert "not below" in answer.content[0].text
    assert missing.is_error
    assert "bsae: no such folder" in missing.content[0].text
    assert "Traceback" not in missing.content[0].text


@pytest.mark.parametrize("name", ["..", "../secret", "link", "base/../../secret"])
def test_a_path_that_leads_out_is_refused(root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not below"):
        open_root(root).report(name)


def test_a_rank_that_is_a_link_out_is_refused(root: Path, tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "in" / "run", steps=20)
    (run / "r00001").symlink_to(root / "base" / "r00001")
    with pytest.raises(UsageError, match="not below"):
        open_root(tmp_path / "in").report("run")


@pytest.mark.parametrize("place", ["r00000/steps.arrows", "r00000/rank.json", "r00000/recent"])
def test_a_link_out_in_the_folder_of_a_rank_is_refused(
    root: Path, tmp_path: Path, place: str
) -> None:
    run, outside = synthetic_trace(tmp_path / "in" / "run", steps=20), root / "base" / "r00000"
    (run / place).unlink(missing_ok=True)
    (run / place).symlink_to(outside if place.endswith("recent") else root / "base" / place)
    for question in (open_root(tmp_path / "in").report, open_root(tmp_path / "in").why):
        with pytest.raises(UsageError, match="not below"):
            question("run")


def test_a_link_out_behind_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    runs = tmp_path / "in"
    run, other = synthetic_trace(runs / "run", steps=20), synthetic_trace(runs / "other", steps=20)
    shutil.rmtree(run / "r00000")
    (run / "r00000").symlink_to(other / "r00000")
    assert open_root(runs).report("run")["steps_seen"] == 20, "a link within the root"
    (other / "r00000" / "loop").symlink_to(other)
    assert open_root(runs).report("run")["steps_seen"] == 20, "a loop of links"
    (other / "r00000" / "steps.arrows").unlink()
    (other / "r00000" / "steps.arrows").symlink_to(root / "base" / "r00000" / "steps.arrows")
    with pytest.raises(UsageError, match="not below"):
        open_root(runs).report("run")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"change": "linc"}, "change 'linc': not one of without, faster, link,"),
        ({"change": "faster", "value": 2, "cause": "dta"}, "cause 'dta': faster takes a phase: "),
        ({"change": "faster", "value": 0, "cause": "data"}, "value 0: faster takes 0.001 to 1000"),
        (
            {"change": "ranks", "value": 5000},
            "value 5000: ranks takes whole numbers from 1 to 1024",
        ),
        ({"change": "ranks", "value": 1.5}, "value 1.5: ranks takes whole numbers from 1 to 1024"),
        ({"change": "without", "cause": "late_rnk"}, "did you mean 'late_rank'"),
    ],
)
def test_a_wrong_question_is_one_clear_line(root: Path, given: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_root(root).whatif("base", **given)
    assert said in str(caught.value)


def test_no_prediction_is_kept(tmp_path: Path) -> None:
    synthetic_trace(tmp_path / "run", ranks=2, steps=40)
    open_root(tmp_path).whatif("run", "link", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    hostile_run(tmp_path / "hostile")
    answers = open_root(tmp_path)
    for text in (json.dumps(answers.runs()), json.dumps(answers.report("hostile"))):
        assert not UNSAFE.search(text)


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfkitError, match="no such folder; name the one that holds your runs"):
        open_root(tmp_path / "none")
