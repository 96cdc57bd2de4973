"""The published interface."""

from __future__ import annotations

import ast

import pytest

import profkit
from profkit.cli import VERBS, build_parser, load_command, main
from profkit.errors import ExitCode
from profkit.report import contract
from profkit.schema import SCHEMAS
from profkit.vocab import PHASES, SCHEMA_VERSION, Integrity, RunState
from tests.house.test_packaging import TOP


def test_the_public_names() -> None:
    assert profkit.__all__ == [
        "ExitCode",
        "ProfkitError",
        "Trace",
        "__version__",
        "explain",
        "loader",
        "phase",
        "report",
        "step",
    ]
    assert all(getattr(profkit, name) is not None for name in profkit.__all__)
    assert dir(profkit) == sorted(profkit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trase'"):
        _ = profkit.trase


def test_the_callbacks() -> None:
    """They are read, for to import one takes its trainer's package."""
    modules = {
        path.stem: ast.parse(path.read_text()).body
        for path in (TOP / "profkit" / "callbacks").glob("[!_]*.py")
    }
    defined = {
        name: sorted(node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef))
        for name, body in modules.items()
    }
    assert {
        name: [public for public in names if not public.startswith("_")]
        for name, names in defined.items()
    } == {
        "huggingface": ["ProfkitCallback"],
        "lightning": ["ProfkitCallback"],
        "paddle_model": ["ProfkitCallback"],
        "paddle_suite": ["add_profiler_step", "install"],
    }


def test_the_verbs() -> None:
    words = "run report explain whatif why tui sql history import verify export mcp completions "
    assert " ".join(VERBS) == words + "schema doctor ceilings trace bench workloads"


def test_the_exit_codes() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "UNFINISHED": 1,
        "USAGE": 2,
        "UNREADABLE": 3,
        "REGRESSION": 10,
        "NOT_JUDGED": 11,
        "HUNG": 12,
        "CANNOT_START": 125,
        "NOT_EXECUTABLE": 126,
        "NOT_FOUND": 127,
        "INTERRUPTED": 130,
    }


def test_the_words_in_files() -> None:
    expected = "data h2d forward backward allreduce optimizer compile other"
    assert " ".join(PHASES) == expected
    assert [state.value for state in RunState] == ["running", "complete", "aborted"]
    assert [state.value for state in Integrity] == ["complete", "running", "ended early", "torn"]


def test_the_schema_version_and_its_columns() -> None:
    assert SCHEMA_VERSION == (2, 2)
    assert {table: " ".join(schema.names) for table, schema in SCHEMAS.items()} == {
        "steps": "rank step start_ns end_ns sample_count loss grad_scale instrumented epoch",
        "spans": (
            "rank step phase name depth thread start_ns end_ns device_start_ns device_end_ns "
            "bytes error"
        ),
        "kernels": (
            "rank device stream start_ns end_ns name category correlation launch_ns step phase op "
            "grid block registers shared_bytes bytes flops tensor_core module line"
        ),
        "collectives": (
            "rank communicator sequence op bytes dtype group_size ready_ns start_ns end_ns "
            "backend step bucket dimension module microbatch"
        ),
        "samples": "rank device source metric time_ns value",
        "events": "rank step time_ns kind name detail value",
        "stacks": "rank time_ns late_ns every_ns thread stack state call waited_share",
        "frames": "rank id parent file function line origin",
        "sums": (
            "rank part first_step last_step start_ns end_ns epoch level kind phase steps "
            "sample_count total_ns lengths"
        ),
        "strings": "rank id value",
    }


def test_the_schema_page_is_current() -> None:
    assert (TOP / "docs" / "schema.md").read_text() == contract.as_markdown(), "run 'make docs'"


def test_the_help_has_the_first_line_of_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    for verb in VERBS:
        summary = (load_command(verb).__doc__ or "").strip().partition("\n")[0]
        assert f"  {verb:<12}{summary.rstrip('.')}" in printed


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        build_parser().parse_args([verb, "--help"])
    assert left.value.code == 0
    assert f"usage: profkit {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "verb",
    [
        "report",
        "explain",
        "bench",
        "tui",
        "import",
        "export",
        "verify",
        "doctor",
        "ceilings",
        "workloads",
        "schema",
        "trace",
    ],
)
def test_every_verb_that_prints_a_table_has_json(verb: str) -> None:
    help_text = next(action for action in build_parser()._actions if action.dest == "verb").choices
    assert isinstance(help_text, dict)
    assert "--json" in help_text[verb].format_help()
