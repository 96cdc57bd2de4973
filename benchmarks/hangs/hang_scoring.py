"""Compare the verdicts with what was planted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hang_plants import BY_NAME, HEALTHY, lines_of


def judge(result: dict[str, Any]) -> dict[str, bool | None]:
    """Return which parts of a verdict are right; `None` for a part that does not apply."""
    account = result["account"]
    if result["plant"] == "healthy":
        return {"quiet": result["alarms"] == 0 and account.get("state") == "did not hang"}
    plant = BY_NAME[result["plant"]]
    verdict = shown_verdict(account)
    ranks = list(range(result["ranks"])) if plant.everybody else [result["culprit"]]
    if "mismatch" in plant.classes and result["ranks"] == 2:
        right_ranks = result["culprit"] in verdict.get("ranks", [])  # two ranks have no majority
    elif plant.everybody:  # some ranks may have left the collective
        right_ranks = bool(verdict.get("ranks")) and set(verdict["ranks"]) <= set(ranks)
    else:
        right_ranks = verdict.get("ranks") == ranks
    line = None
    if plant.site:
        place = (verdict.get("places") or {}).get(str(result["culprit"])) or {}
        file = str(place.get("file", "")).rpartition("/")[2]
        sites = lines_of(plant.site, result["framework"])
        line = (file, place.get("line")) in sites
    in_time = None
    if not result["has_ended"] or plant.goes_on:
        said = result["said_after_s"]
        limit_s = max(result["limit_s"], LIMIT_STEPS * 1.1 * result["step_s"])
        in_time = said is not None and said <= limit_s + TICK_S
    return {
        "class": verdict.get("class") in plant.classes,
        "rank": right_ranks,
        "line": line,
        "in time": in_time,
        "no alarm before": result["early_alarms"] == 0,
    }


def shown_verdict(account: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict, or that of the first alarm after which the job moved again.

    A notice of a start that took long comes before it.
    """
    past = account.get("moved_again") or []
    alarms = [each for each in past if each.get("level") == "alarm"]
    verdict: dict[str, Any] = account.get("verdict") or next(iter(alarms or past), {})
    return verdict


LIMIT_STEPS = 10
TICK_S = 2.0
"""The rank looks each second, and then the alarm. A step takes a tenth longer than it sleeps."""


def read_results(work: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(work.glob("*/result.json")):
        yield json.loads(path.read_text())


def wrong_parts(result: dict[str, Any]) -> list[str]:
    return [name for name, mark in judge(result).items() if mark is False]


def was_aborted(result: dict[str, Any]) -> bool:
    """Return true if a job with a mismatch ended by itself: gloo aborted it."""
    return result["has_ended"] and "mismatch" in BY_NAME[result["plant"]].classes


def score(work: Path) -> dict[str, Any]:
    """Return how many verdicts are right in each part, and a row per job."""
    found = list(read_results(work))
    hangs = [result for result in found if result["plant"] != HEALTHY.name]
    healthy = [result for result in found if result["plant"] == HEALTHY.name]
    rows = {
        "right rank and class first": ["class", "rank"],
        "right file and line": ["line"],
        "verdict in time": ["in time"],
        "no alarm before the hang": ["no alarm before"],
    }
    not_ended = [result for result in hangs if not was_aborted(result)]
    return {
        "all": {title: _share(hangs, names) for title, names in rows.items()},
        "without jobs that gloo ended": {
            title: _share(not_ended, names) for title, names in rows.items()
        },
        "healthy jobs without an alarm": _share(healthy, ["quiet"]),
        "rows": list(map(_row, found)),
    }


def _share(found: Sequence[dict[str, Any]], names: Sequence[str]) -> list[int]:
    """Return how many of the jobs have all of these parts right, and how many have any of them."""
    marks = [[judge(result).get(name) for name in names] for result in found]
    own = [mark for mark in marks if any(each is not None for each in mark)]
    return [sum(False not in mark for mark in own), len(own)]


def _row(result: dict[str, Any]) -> dict[str, Any]:
    shown = shown_verdict(result["account"])
    row = {name: result[name] for name in ("plant", "framework", "ranks", "limit_s")}
    row["verdict"] = shown.get("class", result["account"].get("state"))
    return {**row, "said_after_s": result["said_after_s"], "wrong": wrong_parts(result)}
