"""What `import`, `report` and `explain` print of pairs of published logs.

`python -m tests.rules.log_pages` writes the pages again. Review every changed line: it must follow
from the log. The pages hold profkit's sentences and no line of a log.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.report import as_text, imported
from profkit.report.ledger_document import explained
from profkit.trace import Trace

HERE = Path(__file__).parent
DATA = HERE.parents[1].parent / "shared" / "data"
PAGES = HERE / "log_pages"
OWN_CASES = HERE / "own_log_cases.csv"


def cases() -> dict[str, dict[str, str]]:
    """Return the cases whose logs are here, by name."""
    found = {}
    for path in (DATA / "log_cases.csv", OWN_CASES):
        if path.exists():
            with path.open(encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    if (DATA / "logs" / row["target_log"]).is_file():
                        found[row["case"]] = row
    return found


def page(row: dict[str, str]) -> str:
    """Return all that the three verbs print of a pair; the last run of a file counts."""
    with tempfile.TemporaryDirectory() as folder:
        parts: list[str] = []
        traces = []
        for log in (row.get("baseline_log") or row["base_log"], row["target_log"]):
            made = list(IMPORTER.read([DATA / "logs" / log], Target(Path(folder))))
            parts += map(imported.as_text, made)
            traces.append(Trace.open(made[-1].run))
        parts += [as_text.overview(build_overview(trace)) for trace in traces]
        base, target = traces
        parts.append(as_text.document(explained(explain(base, target))))
        return "\n\n".join(parts).replace(folder, "") + "\n"


def main() -> None:
    wanted = sys.argv[1:]
    PAGES.mkdir(exist_ok=True)
    for case, row in cases().items():
        if not wanted or case in wanted:
            (PAGES / f"{case}.txt").write_text(page(row), encoding="utf-8")


if __name__ == "__main__":
    main()
