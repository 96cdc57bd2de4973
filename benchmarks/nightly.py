"""Write docs/nightly.md from what pytest wrote with --junitxml.

python benchmarks/nightly.py build/nightly.xml build/nightly-alone.xml

What ran again in a later file counts.
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
    last: dict[tuple[str, str], tuple[str, float]] = {}
    repaired = set()
    for path in sys.argv[1:]:
        for case in ET.parse(path).iter("testcase"):
            kinds, kind = {child.tag for child in case}, "passed"
            if kinds & {"failure", "error"}:
                kind = "failed"
            elif "skipped" in kinds:
                kind = "skipped"
            key = case.get("classname", ""), case.get("name", "")
            if last.get(key, ("",))[0] == "failed" and kind == "passed":
                repaired.add(key)
            last[key] = kind, float(case.get("time", 0))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for (module, _), (kind, seconds) in last.items():
        counts[module.split(".")[1]].update({kind: 1, "ms": round(1000 * seconds)})
    page = FIRST.format(**results.origin())
    for folder, each in sorted(counts.items()):
        cells = [folder, *(f"{each[kind]:,}" for kind in ("passed", "failed", "skipped"))]
        page += f"| {' | '.join(cells)} | {each['ms'] / 6e4:.1f} |\n"
    if repaired:
        page += f"\n{len(repaired)} of these failed at first, and passed when they ran once more.\n"
    failed = [
        f"- `{module}::{name}`" for (module, name), (kind, _) in last.items() if kind == "failed"
    ]
    page += "\nNothing failed.\n" if not failed else "\nFailed:\n\n" + "\n".join(failed) + "\n"
    PAGE.write_text(page, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
