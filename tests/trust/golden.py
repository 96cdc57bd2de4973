"""A tiny run of the present schema, which all later versions of profkit must read.

    python -m tests.trust.golden

writes it. It never replaces an existing one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from profkit.schema import SCHEMAS
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import SCHEMA_VERSION, TABLES

KEPT = Path(__file__).parent / "golden"
CONTENT = "content.json"


def describe(run: Path, columns: dict[str, list[str]]) -> dict[str, Any]:
    """Return the number of rows of each table, and a digest of each column's values."""
    trace = Trace.open(run)
    return {
        table: {"rows": trace.table(table).num_rows, "sha256": _digests(trace, table, names)}
        for table, names in columns.items()
    }


def _digests(trace: Trace, table: str, names: list[str]) -> dict[str, str]:
    found = trace.table(table)
    return {
        name: hashlib.sha256(json.dumps(found[name].to_pylist()).encode()).hexdigest()[:16]
        for name in names
    }


def main() -> int:
    folder = KEPT / "schema-{}.{}".format(*SCHEMA_VERSION)
    if folder.exists():
        print(f"{folder}: is there, and is kept as it is", file=sys.stderr)
        return 1
    run = synthetic_trace(
        folder / "run",
        ranks=2,
        steps=16,
        kernels_per_step=4,
        steps_per_epoch=8,
        last_batch_size=9,
        device="cuda",
        stacks=True,
    )
    columns = {table: SCHEMAS[table].names for table in TABLES if table != "strings"}
    (folder / CONTENT).write_text(json.dumps(describe(run, columns), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
