"""Compare the verdicts with what was planted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hang_plants import BOTH, BY_NAME, DEVELOPMENT, HEALTHY, HELD_OUT, PLANTS, lines_of
from healthy_hours import read_kept, say

DOCUMENT = Path(__file__).parents[2] / "docs/hangs-accuracy.md"


def judge(result: dict[str, Any]) -> dict[str, bool | None]:
    """Return which parts of a verdict are right; `None` for a part that does not apply."""
    account = result["account"]
    if result["plant"] == "healthy":
        return {"quiet": result["alarms"] == 0 and account.get("state") == "did not hang"}
    plant = BY_NAME[result["plant"]]
    verdict: dict[str, Any] = account.get("verdict") or next(
        iter(account.get("moved_again") or []), {}
    )
    ranks = list(range(result["ranks"])) if plant.everybody else [result["culprit"]]
    if "mismatch" in plant.classes and result["ranks"] == 2:
        right_ranks = result["culprit"] in verdict.get("ranks", [])  # two ranks have no majority
    elif plant.everybody:  # some ranks may have left the collective
        right_ranks = set(verdict.get("ranks", [])) <= set(ranks)
    else:
        right_ranks = verdict.get("ranks") == ranks
    line = None
    if plant.site:
        place = (verdict.get("places") or {}).get(str(result["culprit"])) or {}
        file = str(place.get("file", "")).rpartition("/")[2]
        sites = lines_of(plant.site, result["variant"], result["framework"])
        line = (file, place.get("line")) in sites
    in_time = None
    if not plant.ends:
        said = result["said_after_s"]
        in_time = said is not None and said <= LIMIT_AND_TICK_S
    return {
        "class": verdict.get("class") in plant.classes,
        "rank": right_ranks,
        "line": line,
        "in time": in_time,
    }


LIMIT_AND_TICK_S = 4.0 + 1.0
"""The limit of these jobs, and the second in which profkit looks again."""


def read_results(work: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(work.glob("*/result.json")):
        yield json.loads(path.read_text())


def score(work: Path, *, write: bool) -> None:
    """Print the table of all results, and write the page if asked."""
    results = list(read_results(work))
    lines = list(_table(results))
    print("\n".join(lines))
    if write:
        DOCUMENT.write_text("\n".join([*_head(results), *lines, ""]))


def _head(results: list[dict[str, Any]]) -> Iterator[str]:
    versions = "torch and PaddlePaddle over gloo, on two cores without a GPU"
    yield "# Accuracy: how often `profkit why` names the right rank, class and line"
    yield ""
    yield (
        "Each job hangs in one planted way. profkit sees only its own files; "
        f"after the verdict every process is killed, and `profkit why` reads the folder. "
        f"{versions}. "
        "The limit without a step was 4 s here (`--hang-after 4`). `benchmarks/hangs` holds the "
        "jobs. The held-out jobs have another model, another rank, and other code on other lines."
    )
    yield ""
    yield (
        "A size or type that differs makes gloo abort a rank, so that such a job ends and does "
        "not hang."
    )
    yield ""
    yield (
        "Three held-out jobs with two ranks were wrong when they were run first, and were not run "
        "again. `compile` and `healthy`: importing torch's compiler took longer than the limit, "
        "and profkit raised the alarm 'never entered'. It now counts as compilation. `join`: this "
        "benchmark killed the ranks before it stopped the alarm, which then said 'rank dead'."
    )
    yield ""
    yield from _say_missing(results)
    yield ""


def _say_missing(results: list[dict[str, Any]]) -> Iterator[str]:
    """Say how many of the jobs have no result."""
    done = {
        tuple(result[name] for name in ("framework", "ranks", "variant", "plant"))
        for result in results
    }
    for framework in BOTH:
        plants = [plant for plant in (*PLANTS, HEALTHY) if framework in plant.frameworks]
        for ranks in (2, 4):
            for variant in (DEVELOPMENT, HELD_OUT):
                names = [
                    plant.name
                    for plant in plants
                    if (framework, ranks, variant, plant.name) not in done
                ]
                if names:
                    yield f"- not run: {framework}, {ranks} ranks, {variant}: {', '.join(names)}"


def _table(results: list[dict[str, Any]]) -> Iterator[str]:
    sums: dict[tuple[str, int, str], Counter[str]] = {}
    misses = []
    rows = []
    for result in results:
        marks = judge(result)
        key = (result["framework"], result["ranks"], result["variant"])
        counter = sums.setdefault(key, Counter())
        for name, mark in marks.items():
            if mark is not None:
                counter[f"{name} of"] += 1
                counter[name] += bool(mark)
        verdict = result["account"].get("verdict") or {}
        past: dict[str, Any] = next(iter(result["account"].get("moved_again") or []), {})
        shown = {**past, **verdict}
        said = result["said_after_s"]
        cells = [
            result["plant"],
            *map(str, key),
            shown.get("class", result["account"].get("state")),
        ]
        cells.append("-" if said is None else f"{said:.1f}")
        wrong = [name for name, mark in marks.items() if mark is False]
        cells.append(", ".join(wrong) or "right")
        rows.append("| " + " | ".join(map(str, cells)) + " |")
        if wrong:
            misses.append(
                f"- {' '.join(map(str, cells[:4]))}: {', '.join(wrong)}: {shown.get('text')}"
            )
    head = "| framework | ranks | variant | class | rank | file and line | in time |"
    yield f"{head} healthy: quiet |"
    yield "|---|---|---|---|---|---|---|---|"
    for key, counter in sorted(sums.items()):
        cells = [
            f"{counter[name]} of {counter[name + ' of']}"
            for name in ("class", "rank", "line", "in time", "quiet")
        ]
        yield "| " + " | ".join([*map(str, key), *cells]) + " |"
    yield ""
    yield "## Misses"
    yield ""
    yield from misses or ["None."]
    yield ""
    yield from say(read_kept())
    yield ""
    yield "## All hangs"
    yield ""
    yield "| hang | framework | ranks | variant | verdict | said after, s | wrong |"
    yield "|---|---|---|---|---|---|---|"
    yield from rows
