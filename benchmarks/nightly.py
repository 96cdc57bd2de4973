"""Write docs/nightly.md from what pytest wrote with --junitxml.

python benchmarks/nightly.py build/nightly.xml build/nightly-alone.xml
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path

import results

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs/nightly.md"
FIRST = """# The last night

All tests that `pytest` does not run by default, by `make nightly`.
{date}, commit {commit}, {machine}.

| folder | passed | failed | skipped | minutes |
|---|---|---|---|---|
"""


def main() -> int:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    failed = []
    for name in sys.argv[1:]:
        for case in ET.parse(name).iter("testcase"):
            folder = case.get("classname", "").split(".")[1]
            kinds, kind = {child.tag for child in case}, "passed"
            if kinds & {"failure", "error"}:
                kind = "failed"
            elif "skipped" in kinds:
                kind = "skipped"
            counts[folder][kind] += 1
            counts[folder]["ms"] += round(1000 * float(case.get("time", 0)))
            if kind == "failed":
                failed.append(f"- `{case.get('classname')}::{case.get('name')}`")
    page = FIRST.format(**results.origin())
    for folder, each in sorted(counts.items()):
        cells = [folder, *(f"{each[kind]:,}" for kind in ("passed", "failed", "skipped"))]
        page += f"| {' | '.join(cells)} | {each['ms'] / 6e4:.1f} |\n"
    page += "\nNothing failed.\n" if not failed else "\nFailed:\n\n" + "\n".join(failed) + "\n"
    PAGE.write_text(page, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
