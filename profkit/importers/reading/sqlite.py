"""Opens a stranger's SQLite file for reading, so that nothing in it can act and nothing goes on for ever."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from profkit.errors import UnreadableError
from profkit.text import safe_text

MISSING = -(2**63)
SECONDS_EACH_GB = 60
FEWEST_SECONDS = 4
LONGEST_TEXT = 65_536
_CHECK_EVERY = 100_000


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """The database; views, triggers and virtual tables are refused, and damage is an `UnreadableError`."""
    shown = safe_text(str(path))
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True
        )
    except sqlite3.Error as error:
        raise UnreadableError(f"{shown}: {error}") from error
    try:
        _harden(connection, path)
        yield connection
    except (
        sqlite3.Error,
        OverflowError,
        UnicodeDecodeError,
    ) as error:  # the last: a damaged schema, quoted in SQLite's own message
        raise UnreadableError(
            f"{shown}: not a sound SQLite file: {safe_text(str(error))}"
        ) from error
    finally:
        connection.close()


def _harden(connection: sqlite3.Connection, path: Path) -> None:
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.text_factory = lambda raw: raw[:LONGEST_TEXT].decode("utf-8", "replace")
    deadline = time.monotonic() + FEWEST_SECONDS + SECONDS_EACH_GB * path.stat().st_size / 1e9
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
    strange = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
    ).fetchone()
    if strange:
        raise UnreadableError(
            f"{safe_text(str(path))}: holds the {safe_text(str(strange[0]))} '{safe_text(str(strange[1]))}'; an export of Nsight Systems has none, and it is not read"
        )


def tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """The tables and their columns."""
    names = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return {
        name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({quoted(name)})"))
        for name in names
    }


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def whole_columns(
    connection: sqlite3.Connection, table: str, there: Sequence[str], wanted: Sequence[str]
) -> Mapping[str, npt.NDArray[np.int64]]:
    """The wanted columns as whole numbers: `MISSING` where the table has no such column, or the row no number in it."""
    chosen = [
        f"CASE typeof({quoted(name)}) WHEN 'integer' THEN {quoted(name)} ELSE {MISSING} END"
        if name in there
        else str(MISSING)
        for name in wanted
    ]
    rows = connection.execute(f"SELECT {', '.join(chosen)} FROM {quoted(table)}").fetchall()  # noqa: S608  # names are quoted, and ours or the schema's
    values = np.array(rows, dtype=np.int64).reshape(-1, len(wanted))
    return {name: values[:, place] for place, name in enumerate(wanted)}


def rows(
    connection: sqlite3.Connection, table: str, there: Sequence[str], wanted: Sequence[str]
) -> list[tuple[Any, ...]]:
    """The wanted columns as they are, null where the table has none of that name."""
    chosen = [quoted(name) if name in there else "NULL" for name in wanted]
    return connection.execute(f"SELECT {', '.join(chosen)} FROM {quoted(table)}").fetchall()  # noqa: S608  # names are quoted, and ours or the schema's
