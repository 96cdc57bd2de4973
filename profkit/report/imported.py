"""What `profkit import` prints: the runs that it made, what was left out, and what to type next."""

from __future__ import annotations

from typing import Any

from profkit.importers.base import Imported
from profkit.text import plural, safe_text


def as_text(made: Imported) -> str:
    rows = ", ".join(
        plural(count, table.removesuffix("s")) for table, count in made.rows.items() if count
    )
    files = (
        made.sources[0].name
        if len(made.sources) == 1
        else f"{made.sources[0].name} and {plural(len(made.sources) - 1, 'more file')}"
    )
    lines = [
        f"{safe_text(files)} ({made.importer}): {plural(made.ranks, 'rank')}, {rows or 'nothing'}"
    ]
    lines += [f"  flag      {flag}" for flag in made.flags]
    lines += [f"  left out  {count:,} {what}" for what, count in sorted(made.dropped.items())]
    lines += [f"  next      profkit report {safe_text(str(made.run))}"]
    return "\n".join(lines)


def as_json(made: Imported) -> dict[str, Any]:
    return {
        "run": str(made.run),
        "format": made.importer,
        "sources": [str(path) for path in made.sources],
        "ranks": made.ranks,
        "rows": dict(made.rows),
        "dropped": dict(made.dropped),
        "flags": list(made.flags),
    }
