"""Run every case of tests/harmless bare and recorded, and keep the results.

    python benchmarks/harmless.py

Cases of DistributedDataParallel and of paddle.DataParallel run on two and on three ranks. The
results go into docs/reliability/harmless.json, from which reliability.py makes the table of its
page. Exits 1 if a recorded case differs from the bare one in a single bit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
KEPT = TOP / "docs" / "reliability" / "harmless.json"
WORLDS = (2, 3)
LONGEST_OUTCOME = 60

Row = dict[str, Any]


def torch_rows(folder: Path) -> Iterator[Row]:
    from tests.harmless import test_ddp as ddp

    for world in WORLDS:
        place = folder / f"torch{world}"
        before = [sys.executable, "-m", "profkit", "run", "--output", str(place / "traces"), "--"]
        names = ddp.names_of_cases(world, full=True)
        bare = ddp.launch(world, names, place / "bare", [])
        recorded = ddp.launch(world, names, place / "recorded", before)
        for name in names:
            sides = [
                [rank.get(name, {"outcome": "not reached", "digest": None}) for rank in side.ranks]
                for side in (bare, recorded)
            ]
            digests = [[rank["digest"] for rank in side] for side in sides]
            equal = digests[0] == digests[1] and None not in digests[0]
            yield _row("torch", name, world, sides[0][0]["outcome"], sides[1][0]["outcome"], equal)


def paddle_rows(folder: Path) -> Iterator[Row]:
    from tests.harmless import test_paddle as paddle

    for world in WORLDS:
        place = folder / f"paddle{world}"
        bare = paddle._launch(place / "bare", world, recorded=False)  # noqa: SLF001  # a test's own
        recorded = paddle._launch(place / "recorded", world, recorded=True)  # noqa: SLF001
        for name in paddle.CASES:
            sides = bare.outcomes(name), recorded.outcomes(name)
            if "only on two ranks" in str(sides[0][0]):
                continue
            equal = sides[0] == sides[1] and "never came to it" not in sides[0]
            yield _row("paddle", name, world, _words(sides[0][0]), _words(sides[1][0]), equal)


def _words(outcome: Any) -> str:
    if isinstance(outcome, dict):
        return str(outcome.get("error", "trained"))
    return str(outcome)


def _row(framework: str, case: str, ranks: int, bare: str, recorded: str, equal: bool) -> Row:
    shown = {"bare": bare[:LONGEST_OUTCOME], "recorded": recorded[:LONGEST_OUTCOME]}
    return {"framework": framework, "case": case, "ranks": ranks, **shown, "equal": equal}


def main() -> int:
    sys.path.insert(0, str(TOP))
    with tempfile.TemporaryDirectory() as folder:
        rows = [*torch_rows(Path(folder)), *paddle_rows(Path(folder))]
    KEPT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    different = [row for row in rows if not row["equal"]]
    counts = {"compared": len(rows), "equal": len(rows) - len(different)}
    print(json.dumps({"bare and recorded": counts}))
    for row in different:
        print(f"not equal: {row}", file=sys.stderr)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
