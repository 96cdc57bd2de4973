"""Runs one SQL statement over the tables of runs, without access to anything else.

DuckDB can read any file, load extensions over the network and look into variables of the process.
A query may come from somebody else, or from a program: it sees the tables, and nothing else.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profkit.errors import ProfkitError, UsageError
from profkit.query.tables import NAMES, RunTables
from profkit.text import did_you_mean, safe_text

if TYPE_CHECKING:
    import duckdb

MEMORY = "4GB"
"""The most memory of a query in DuckDB: a machine that looks at runs may also be training."""

MOST_THREADS = 4

SETTINGS: Mapping[str, str] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # a name is a table, never a variable of this process
    "temp_directory": "",  # what does not fit into the memory is an error, and no file
    "memory_limit": MEMORY,
    "threads": str(min(MOST_THREADS, os.cpu_count() or 1)),
}

AT_LAST = (
    "SET secret_directory = ''",  # its default shows the name of the user
    "SET enable_external_access = false",  # no files, no network, no other data bases
)
"""Settings that only work in this order."""

INTERRUPT_EVERY_S = 0.1

_WORD = re.compile(r"[A-Za-z_]+")
_LISTS_TABLES = re.compile(
    r"\b(show|describe|summarize|information_schema|duckdb_\w+)\b", re.IGNORECASE
)
"""A query that may list all tables, so that all of them have to be there."""


@dataclass(frozen=True)
class Answer:
    """The rows that a query returns, or the first of them."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    has_more: bool


def answer(
    sides: Mapping[str, RunTables], query: str, most: int, limit_s: float = math.inf
) -> Answer:
    """Return what a query says about runs; each is a schema, and `main` is the default one.

    Only the tables that the query names are read, and `most` of the rows that it returns: as
    objects of this process, they count to nobody's limit.
    """
    duckdb = import_duckdb()
    connection = duckdb.connect(":memory:", config=dict(SETTINGS))
    try:
        for setting in AT_LAST:
            connection.execute(setting)
        check_statement(connection, query)
        for schema, name in wanted_tables(sides, query):
            add_table(connection, schema, name, sides[schema])
        connection.execute("SET lock_configuration = true")
        with interrupted_after(limit_s, connection):
            found = connection.execute(query)
            columns = found.description or []
            rows = fetch_rows(found, most + 1)
    except duckdb.InterruptException:
        raise ProfkitError(
            f"the query: not done after {limit_s:g} s; narrow it, or raise --time-limit"
        ) from None
    except duckdb.Error as error:
        raise UsageError(f"the query: {explain_error(error, sides)}") from None
    finally:
        connection.close()
    names, types = [], []
    for name, kind, *_ in columns:
        names.append(name)
        types.append(str(kind))
    return Answer(tuple(names), tuple(types), tuple(rows[:most]), len(rows) > most)


@contextlib.contextmanager
def interrupted_after(limit_s: float, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Interrupt what a connection does once it has taken so long."""
    done = threading.Event()

    def interrupt() -> None:
        left_s = min(limit_s, threading.TIMEOUT_MAX)
        while not done.wait(left_s):
            connection.interrupt()  # which is lost between the parts of a query
            left_s = INTERRUPT_EVERY_S

    thread = threading.Thread(target=interrupt, name="profkit-sql-limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def fetch_rows(found: duckdb.DuckDBPyConnection, most: int) -> list[Any]:
    """Return the first rows as Python objects; some values of DuckDB have none."""
    import duckdb

    try:
        return list(found.fetchmany(most))
    except (OverflowError, ValueError):
        raise UsageError("the query: a value is too large to show; CAST it to text") from None
    except duckdb.InvalidInputException as error:
        if "'pytz'" not in str(error):
            raise
        raise ProfkitError(
            "the query: a time with a time zone needs pytz, which is not installed: pip install "
            "'profkit[sql]', or CAST it to text"
        ) from None


def import_duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ProfkitError(
            "'profkit sql' needs DuckDB, which is not installed: pip install 'profkit[sql]'"
        ) from None
    return duckdb


def check_statement(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse anything but one statement that only reads."""
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise UsageError(f"the query: {len(statements)} statements; give one SELECT")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise UsageError(f"the query: a run is only read; give a SELECT, not {kind.name}")


def wanted_tables(sides: Mapping[str, RunTables], query: str) -> Iterator[tuple[str, str]]:
    """Yield the tables whose name is a word of the query; one word too many does no harm."""
    words = set(map(str.lower, _WORD.findall(query)))
    lists_tables = _LISTS_TABLES.search(query) is not None
    for schema in sides:
        for name in NAMES:
            if lists_tables or name in words:
                yield schema, name


def add_table(
    connection: duckdb.DuckDBPyConnection, schema: str, name: str, tables: RunTables
) -> None:
    """Show a table under its name in the schema of its run; Arrow's memory is not copied."""
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    connection.register(f"{schema}__{name}", tables.read(name))
    connection.execute(f"CREATE VIEW {schema}.{name} AS FROM {schema}__{name}")


def explain_error(error: Exception, sides: Mapping[str, RunTables]) -> str:
    """Return DuckDB's message as one line, with the place in the query."""
    text, _, place = str(error).partition("\nLINE ")
    words = safe_text(" ".join(text.split()))
    line, colon, rest = place.partition(": ")
    source, _, caret = rest.partition("\n")
    if colon and "^" in caret and source:
        column = caret.index("^") - len(f"LINE {line}: ") + 1
        words += f" (line {line}, column {max(1, column)})"
    missing = re.match(r"Catalog Error: Table with name (\S+) does not exist", words)
    if missing:
        near = did_you_mean(missing[1].lower(), NAMES)
        prefix = "" if len(sides) == 1 else f" in the schemas {' and '.join(sides)}"
        return f"there is no table {missing[1]}{near} (the tables{prefix}: {', '.join(NAMES)})"
    return words
