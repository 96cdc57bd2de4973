"""Opens a stranger's SQLite file: nothing in it can act, and no query runs for ever."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from profkit.errors import UnreadableError
from profkit.importers.reading.numbers import MISSING, Ints
from profkit.text import safe_text

MIN_SECONDS = 4
SECONDS_PER_GB = 60
"""Queries on a file are stopped after this time, plus `MIN_SECONDS`."""
LONGEST_TEXT = 65_536
_INSTRUCTIONS_PER_CHECK = 100_000
_PRAGMAS = ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0")


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database; views, triggers and virtual tables are refused, damage is an error."""
    shown = safe_text(str(path))
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(address, uri=True)
    except sqlite3.Error as error:
        raise UnreadableError(f"{shown}: {error}") from error
    try:
        deadline = time.monotonic() + MIN_SECONDS + SECONDS_PER_GB * path.stat().st_size / 1e9
        _harden(connection, deadline, shown)
        yield connection
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        # SQLite quotes a damaged schema in its message, which then cannot be decoded.
        reason = safe_text(str(error))
        raise UnreadableError(f"{shown}: not a sound SQLite file: {reason}") from error
    finally:
        connection.close()


def _harden(connection: sqlite3.Connection, deadline: float, shown: str) -> None:
    """Let the database run nothing, and not for long; refuse all but tables and indexes."""
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    connection.text_factory = lambda raw: raw[:LONGEST_TEXT].decode("utf-8", "replace")
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS_PER_CHECK)
    strange = connection.execute(
        "SELECT type, name FROM sqlite_master "
        "WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
    ).fetchone()
    if strange:
        kind, name = safe_text(str(strange[0])), safe_text(str(strange[1]))
        raise UnreadableError(
            f"{shown}: it holds the {kind} '{name}', which no export of Nsight Systems has; "
            "it is not read"
        )


def tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Return the tables and their columns."""
    found = {}
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in rows:
        columns = connection.execute(f"PRAGMA table_info({quoted(name)})")
        found[name] = tuple(row[1] for row in columns)
    return found


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def whole_columns(
    connection: sqlite3.Connection, table: str, existing: Sequence[str], wanted: Sequence[str]
) -> Mapping[str, Ints]:
    """Return columns as whole numbers, `MISSING` for other values and missing columns."""
    chosen = []
    for name in wanted:
        if name in existing:
            column = quoted(name)
            chosen.append(f"CASE typeof({column}) WHEN 'integer' THEN {column} ELSE {MISSING} END")
        else:
            chosen.append(str(MISSING))
    found = _select(connection, table, chosen)
    values = np.array(found, dtype=np.int64).reshape(-1, len(wanted))
    return {name: values[:, place] for place, name in enumerate(wanted)}


def rows(
    connection: sqlite3.Connection, table: str, existing: Sequence[str], wanted: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the wanted columns as they are; null replaces columns that do not exist."""
    chosen = []
    for name in wanted:
        chosen.append(quoted(name) if name in existing else "NULL")
    return _select(connection, table, chosen)


def _select(
    connection: sqlite3.Connection, table: str, expressions: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Run a query; names in the expressions are quoted, and come from us or the schema."""
    query = f"SELECT {', '.join(expressions)} FROM {quoted(table)}"  # noqa: S608  # see above
    return connection.execute(query).fetchall()
