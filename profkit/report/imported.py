"""The output of `profkit import`: new runs, what was excluded, and the next command."""

from __future__ import annotations

from profkit.hangs.status import FOLDER
from profkit.importers.base import Imported
from profkit.text import plural, safe_text


def as_text(made: Imported) -> str:
    files = made.sources[0].name
    if len(made.sources) > 1:
        files += f" and {plural(len(made.sources) - 1, 'more file')}"
    rows = []
    for table, count in made.rows.items():
        if count:
            rows.append(plural(count, table.removesuffix("s")))
    ranks, found = plural(made.ranks, "rank"), ", ".join(rows) or "nothing"
    if made.ranks_of_job > made.ranks:
        ranks = f"{made.ranks:,} of {plural(made.ranks_of_job, 'rank')}"
    lines = [f"{safe_text(files)} ({made.format}): {ranks}, {found}"]
    for flag in made.flags:
        lines.append(f"  flag      {flag}")
    for what, count in sorted(made.dropped.items()):
        lines.append(f"  excluded  {count:,} {what}")
    verb = "report"
    if not made.rows.get("steps") and (made.run / FOLDER).is_dir():
        verb = "why"
    lines.append(f"  next      profkit {verb} {safe_text(str(made.run))}")
    return "\n".join(lines)
