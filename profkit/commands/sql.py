"""Ask a run with SQL: its tables, and the sums that the figures are made of.

'profkit sql RUN "SELECT ..."' answers with DuckDB (pip install 'profkit[sql]'). Without a query it
lists the tables and columns. With two runs, their tables are in the schemas 'base' and 'target'.
A query '-' is read from stdin. docs/sql.md has recipes that give the same figures as 'profkit
report --json' and 'profkit explain --json'.

A query only reads: it reaches no files, no network and no other process.
"""

from __future__ import annotations

import argparse
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.address import to_path
from profkit.commands._options import add_json, add_output, duration_s, run_or_newest
from profkit.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from profkit.query.engine import Answer
    from profkit.query.tables import RunTables

MOST_ROWS = 10_000
"""Rows that are shown on a screen."""

MOST_JSON_ROWS = 1_000_000
"""Rows that --json prints: rows of ten columns then take about a gigabyte."""

LONGEST_CELL = 120
"""Characters of a cell on a screen."""

STDIN = "-"
ALONE, SIDES = "main", ("base", "target")
"""The schemas of one run, in which names need no schema, and of two."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words_given",
        nargs="*",
        metavar="RUN | QUERY",
        help="one run or two (default: the newest run below --output), then the query",
    )
    parser.add_argument(
        "--time-limit",
        type=duration_s,
        default="60s",
        metavar="TIME",
        help="end a query that takes longer, as in 15m (default: %(default)s)",
    )
    add_output(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.frame.notices import find_thinned_notice
    from profkit.query.tables import RunTables
    from profkit.trace import Trace

    runs, query = split_words(args.words_given)
    sides = dict(zip(SIDES if len(runs) == 2 else (ALONE,), runs or (None,), strict=True))
    tables = {}
    for schema, path in sides.items():
        tables[schema] = RunTables(Trace.open(run_or_newest(path, args.output)))
    if query is None:
        list_tables(next(iter(tables.values())), args)
        return ExitCode.DONE
    from profkit.query.engine import answer

    most = MOST_JSON_ROWS if args.json else MOST_ROWS
    found = answer(tables, query, most, args.time_limit)
    if args.json and found.has_more:
        raise UsageError(
            f"the query: more than {most:,} rows; give it a LIMIT, or write whole tables: "
            "profkit export RUN --format parquet"
        )
    for side in tables.values():
        for problem in (*side.trace.problems, *find_thinned_notice(side.trace)):
            print(f"profkit: {problem}", file=sys.stderr)
    show(found, args)
    return ExitCode.DONE


def split_words(words: list[str]) -> tuple[list[Path], str | None]:
    """Return the runs and the query; a query has several words, and is no path that there is."""
    query = None
    if words and (words[-1] == STDIN or (len(words[-1].split()) > 1 and not is_path(words[-1]))):
        *words, query = words
    if query == STDIN:
        query = sys.stdin.read()
    if len(words) > 2:
        raise UsageError(
            f"{len(words)} runs; give one, or a base and a target, and the query in quotes"
        )
    return list(map(to_path, words)), query


def is_path(word: str) -> bool:
    try:
        return to_path(word).exists()
    except (OSError, ValueError):  # longer than a path can be, or with a null in it
        return False


def list_tables(tables: RunTables, args: argparse.Namespace) -> None:
    from profkit.query.tables import ABOUT_TABLES, NAMES
    from profkit.show.json import dumps
    from profkit.text import fold

    columns = {name: tables.columns(name) for name in NAMES}
    if args.json:
        print(dumps({"tables": columns}))
        return
    for name in NAMES:
        print(f"{name}: {ABOUT_TABLES[name]}")
        described = [f"{column} ({kind})" for column, kind in columns[name].items()]
        print(fold(", ".join(described), rest="  "))


def show(found: Answer, args: argparse.Namespace) -> None:
    from profkit.show.json import dumps
    from profkit.text import shorten, table

    if args.json:
        columns = []
        for name, kind in zip(found.columns, found.types, strict=True):
            columns.append({"name": name, "type": kind})
        print(
            dumps({"columns": columns, "rows": [list(map(json_value, row)) for row in found.rows]})
        )
        return
    cells = []
    for row in (found.columns, *found.rows):
        cells.append([shorten(cell_text(value), LONGEST_CELL) for value in row])
    numbers = {place for place, kind in enumerate(found.types) if kind in _NUMBERS}
    print(table(cells, right=frozenset(numbers), indent=""))
    if found.has_more:
        shown = f"profkit: the first {MOST_ROWS:,} rows are shown; --json prints up to"
        print(
            f"{shown} {MOST_JSON_ROWS:,}, and OFFSET {MOST_ROWS} in the query shows the next ones",
            file=sys.stderr,
        )


_NUMBERS = {"BIGINT", "INTEGER", "SMALLINT", "HUGEINT", "UBIGINT", "DOUBLE", "FLOAT", "NUMBER"}


def cell_text(value: Any) -> str:
    return "null" if value is None else str(value)


def json_value(value: Any) -> Any:
    """Return a value as JSON knows it; a decimal number keeps its digits as a float can."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return list(map(json_value, value))
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    return str(value)
