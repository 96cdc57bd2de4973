"""`profkit sql`: what a query reads, what it cannot reach, and what a mistake looks like."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from profkit import cli
from profkit.commands import sql
from profkit.errors import ExitCode
from profkit.query.tables import NAMES, RunTables
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.hostile import INJECTIONS, UNSAFE, hostile_run

Call = Callable[..., "tuple[int, str, str]"]
SECRET = "a-secret-of-this-machine"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(
        tmp_path_factory.mktemp("runs") / "two", ranks=2, steps=60, kernels_per_step=4, stacks=True
    )


@pytest.fixture
def profkit(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(list(map(str, arguments)))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def ask(profkit: Call, run: Path) -> Callable[[str], Any]:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")

    def rows(query: str) -> Any:
        code, printed, said = profkit("sql", run, query, "--json")
        assert code == 0, said
        return json.loads(printed)

    return rows


def refused(profkit: Call, run: Path, query: str) -> str:
    """Return the one line that says why a query is refused."""
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    code, printed, said = profkit("sql", run, query)
    assert (code, printed) == (2, ""), printed
    assert len(said.splitlines()) == 1, said
    assert said.startswith("profkit: the query: ")
    return said


def test_every_table_has_the_rows_that_the_reader_has(ask: Callable[[str], Any], run: Path) -> None:
    tables = RunTables(Trace.open(run))
    for name in NAMES:
        expected = tables.read(name)
        found = ask(f"SELECT * FROM {name}")
        assert [column["name"] for column in found["columns"]] == expected.column_names
        rows = [list(row.values()) for row in expected.to_pylist()]
        assert found["rows"] == json.loads(json.dumps(rows)), name


def test_nulls_lists_and_large_sums_are_json(ask: Callable[[str], Any]) -> None:
    query = "SELECT NULL, [1, 2], sum(9223372036854775807::HUGEINT), 1.5, 2.0, true, 'nan'::DOUBLE"
    (row,) = ask(f"{query} FROM range(3)")["rows"]
    assert row == [None, [1, 2], 27670116110564327421, 1.5, 2, True, None]


def test_a_screen_shows_a_table(profkit: Call, run: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    code, printed, _ = profkit("sql", run, "SELECT rank, count(*) AS rows FROM steps GROUP BY 1")
    assert code == 0
    assert printed.splitlines()[0].split() == ["rank", "rows"]
    assert sorted(line.split() for line in printed.splitlines()[1:]) == [["0", "60"], ["1", "60"]]


def test_without_a_query_the_tables_are_listed(profkit: Call, run: Path) -> None:
    code, printed, _ = profkit("sql", run)
    assert code == 0
    assert all(f"{name}: " in printed for name in NAMES)
    _, printed, _ = profkit("sql", run, "--json")
    assert set(json.loads(printed)["tables"]) == set(NAMES)


def test_a_query_from_stdin(profkit: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT count(*) FROM steps"))
    assert "120" in profkit("sql", run, "-")[1]


def test_a_query_may_have_a_line_for_each_word(ask: Callable[[str], Any]) -> None:
    assert ask("FROM\nrun\nSELECT\nworld_size\n")["rows"] == [[2]]


def test_the_tables_can_be_described(ask: Callable[[str], Any]) -> None:
    assert len(ask("DESCRIBE steps")["rows"]) == 9
    names = {row[0] for row in ask("SELECT table_name FROM information_schema.tables")["rows"]}
    assert set(NAMES) <= names


REACHING_OUT = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM read_parquet('https://evil.example/x.parquet')",
    "SELECT * FROM 'https://evil.example/x.csv'",
    "SELECT * FROM sqlite_scan('{file}', 'x')",
    "SELECT * FROM (COPY (SELECT 1) TO '{made}')",
    "COPY (SELECT 1) TO '{made}'",
    "ATTACH '{made}' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "EXPORT DATABASE '{made}'",
    "CREATE TABLE steps2 AS SELECT 1",
    "INSERT INTO steps VALUES (1)",
    "DROP VIEW steps",
    "PRAGMA enable_external_access = true",
    "CALL pragma_version()",
    "SELECT 1; SELECT 2",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{made}'",
]


@pytest.mark.parametrize("query", REACHING_OUT)
def test_a_query_reaches_nothing_but_the_run(
    profkit: Call, run: Path, tmp_path: Path, query: str
) -> None:
    file, made = tmp_path / "secret.csv", tmp_path / "made"
    file.write_text(f"{SECRET}\n")
    refused(profkit, run, query.format(file=file, folder=tmp_path, made=made))
    assert sorted(os.listdir(tmp_path)) == ["secret.csv"]


@pytest.mark.parametrize("name", ["tables", "RunTables", "os", "connection", "sides", "duckdb"])
def test_a_variable_of_the_process_is_no_table(profkit: Call, run: Path, name: str) -> None:
    assert f"there is no table {name}" in refused(profkit, run, f"SELECT * FROM {name}")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT getenv('HOME')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT name, value FROM duckdb_settings()",
    ],
)
def test_the_environment_is_not_told(profkit: Call, run: Path, query: str) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    _, printed, _ = profkit("sql", run, query, "--json")
    assert os.environ["HOME"] not in printed


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM step", "there is no table step; did you mean 'steps'? (the tables: steps,"),
        ("SELECT stepp FROM steps", '"stepp" not found'),
        ("SELEC 1 FROM steps", "syntax error"),
        ("DELETE FROM steps", "a run is only read; give a SELECT, not DELETE"),
        ("SELECT 1; SELECT 2", "2 statements; give one SELECT"),
    ],
)
def test_a_mistake_is_one_clear_line(profkit: Call, run: Path, query: str, said: str) -> None:
    assert said in refused(profkit, run, query)


def test_times_with_a_zone_are_shown(ask: Callable[[str], Any]) -> None:
    pytest.importorskip("pytz", reason="the extra 'sql' is older")
    (row,) = ask("SELECT to_timestamp(created_ns / 1e9), [to_timestamp(0)] FROM run")["rows"]
    created, (zero,) = row
    now = datetime.now(timezone.utc)
    assert datetime.fromisoformat(created) <= now
    assert datetime.fromisoformat(zero).timestamp() == 0


def test_times_with_a_zone_need_a_package_of_the_extra(run: Path) -> None:
    """A process of its own: DuckDB keeps a package that it has found."""
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    code = "import sys; sys.modules['pytz'] = None; from profkit import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", code, "sql", str(run), "SELECT now()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "profkit: the query: a time with a time zone needs pytz, which is not installed: pip "
        "install 'profkit[sql]', or CAST it to text\n"
    )


@pytest.mark.parametrize("query", ["SELECT '1 year'::INTERVAL * 100000000"])
def test_a_value_that_python_has_not_is_one_clear_line(
    profkit: Call, run: Path, query: str
) -> None:
    assert "a value is too large to show; CAST it to text" in refused(profkit, run, query)


def test_the_place_of_a_mistake_is_named(profkit: Call, run: Path) -> None:
    assert "(line 2, column 8)" in refused(profkit, run, "SELECT step,\n       stepp FROM steps")


def test_what_does_not_fit_into_the_memory_is_an_error_and_no_file(
    profkit: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profkit.query import engine

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "SETTINGS", {**engine.SETTINGS, "memory_limit": "20MB"})
    query = "SELECT list(range) FROM range(50000000)"
    assert "emory" in refused(profkit, run, query)
    assert os.listdir(tmp_path) == []


def test_a_query_that_takes_too_long_is_ended(profkit: Call, run: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    query = "SELECT count(*) FROM range(10000000000) a, range(10000000) b"
    code, printed, said = profkit("sql", run, query, "--time-limit", "0.2")
    assert (code, printed) == (ExitCode.UNFINISHED, "")
    assert said == "profkit: the query: not done after 0.2 s; narrow it, or raise --time-limit\n"


def test_no_more_rows_are_read_than_are_shown(run: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    from profkit.query.engine import answer

    tables = {"main": RunTables(Trace.open(run))}
    tracemalloc.start()
    found = answer(tables, "SELECT * FROM range(50000000)", 10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(found.rows), found.has_more) == (10_000, True)
    assert peak < 100 << 20
    assert not answer(tables, "SELECT * FROM range(10000)", 10_000).has_more


def test_a_screen_says_that_there_are_more_rows(profkit: Call, run: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    _, printed, said = profkit("sql", run, "SELECT * FROM range(10001)")
    assert len(printed.splitlines()) == 1 + 10_000
    assert said == (
        "profkit: the first 10,000 rows are shown; --json prints up to 1,000,000, and OFFSET "
        "10000 in the query shows the next ones\n"
    )


def test_json_has_all_rows_or_none(
    profkit: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MOST_JSON_ROWS", 20)
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    code, printed, said = profkit("sql", run, "SELECT * FROM range(21)", "--json")
    assert (code, printed) == (2, "")
    assert said == (
        "profkit: the query: more than 20 rows; give it a LIMIT, or write whole tables: "
        "profkit export RUN --format parquet\n"
    )
    assert profkit("sql", run, "SELECT * FROM range(20)", "--json")[0] == 0


def test_hostile_names_are_safe_to_print_and_whole_in_json(profkit: Call, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    run = hostile_run(tmp_path / "hostile")
    for name in NAMES:
        code, printed, _ = profkit("sql", run, f"SELECT * FROM {name}")
        assert code == 0, name
        assert not UNSAFE.search(printed), name
    _, printed, _ = profkit("sql", run, "SELECT DISTINCT name FROM spans", "--json")
    found = {row[0] for row in json.loads(printed)["rows"]}
    assert INJECTIONS["formula"] in found
    assert len(found) == len(INJECTIONS)


def test_three_runs_are_too_many(profkit: Call, run: Path) -> None:
    code, _, said = profkit("sql", run, run, run, "SELECT 1")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "3 runs; give one, or a base and a target" in said


def test_a_missing_package_is_one_line(
    profkit: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, _, said = profkit("sql", run, "SELECT 1")
    assert code == 1
    assert said == (
        "profkit: 'profkit sql' needs DuckDB, which is not installed: pip install 'profkit[sql]'\n"
    )
