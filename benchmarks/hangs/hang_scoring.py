"""Compare the verdicts with what was planted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hang_plants import BOTH, BY_NAME, DEVELOPMENT, HEALTHY, HELD_OUT, PLANTS, lines_of
from healthy_hours import BEGIN as HOURS_BEGIN
from healthy_hours import END as HOURS_END
from healthy_hours import read_kept, say, say_hours

sys.path.append(str(Path(__file__).parents[1]))
from page_sections import replace_section

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT, ACCURACY = DOCS / "hangs-accuracy.md", DOCS / "accuracy.md"
FIRST = Path(__file__).parent / "hang_first_run.json"
VARIANTS = (DEVELOPMENT, HELD_OUT)
USUAL_LIMIT_S = 4.0
BEGIN, END = "<!-- hangs -->", "<!-- end of hangs -->"
AGAIN_BEGIN, AGAIN_END = "<!-- ended by gloo -->", "<!-- end of ended by gloo -->"
HUNG = ", without jobs that gloo ended"
"""The end of the title of a row about jobs that hung."""

LINK = (
    "Jobs of 2 and 4 ranks hang in planted ways (`benchmarks/hangs`). "
    "[hangs-accuracy.md](hangs-accuracy.md) lists them. *First run*: before any verdict was fixed."
)


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
        sites = lines_of(plant.site, result["variant"], result["framework"])
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


def key_of(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[name] for name in ("plant", "framework", "ranks", "variant", "limit_s"))


def score(work: Path, *, write: bool) -> None:
    """Print the table of all results, and write the pages if asked."""
    results = list(read_results(work))
    note_first(results)
    lines = [*_summary(results), "", *_table(results)]
    print("\n".join(lines))
    if write:
        DOCUMENT.write_text("\n".join([*_head(results), *lines, ""]))
        page = ACCURACY.read_text()
        section = "\n".join(["## Hangs", "", LINK, "", *_summary(results), ""])
        ACCURACY.write_text(replace_section(page, section, BEGIN, END))


def note_first(results: list[dict[str, Any]]) -> None:
    """Keep what was wrong the first time that a job ran."""
    kept = json.loads(FIRST.read_text()) if FIRST.exists() else []
    known = {tuple(each["job"]) for each in kept}
    for result in results:
        if key_of(result) not in known:
            kept.append({"job": key_of(result), "wrong": wrong_parts(result)})
    FIRST.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n")


def score_again(work: Path, *, write: bool) -> None:
    """Print how often the line of a job that gloo ended is right; these jobs can run alone."""
    ended = list(filter(was_aborted, read_results(work)))
    lines = [mark["line"] for mark in map(judge, ended) if mark["line"] is not None]
    by_plant = []
    for name in sorted({result["plant"] for result in ended}):
        own = [result for result in ended if result["plant"] == name]
        by_plant.append(f"{name} {_share(own, ['line'])}")
    when = time.strftime("%Y-%m-%d", time.gmtime())
    named = sum(map(names_site, ended))
    said = (
        f"Jobs that gloo ended ran again on {when}, since profkit has the stack "
        f"written at a crash. In {named} of {len(ended)} the line of the call "
        f"is named, of any rank; in {sum(lines)} of {len(lines)} that of the planted rank "
        f"({', '.join(by_plant)}), which its launcher mostly ended before it could leave a stack. "
        "The tables above are from before."
    )
    print(said)
    if write:
        page = DOCUMENT.read_text()
        before, mark, after = page.partition("## Misses\n")
        if AGAIN_BEGIN not in page:
            page = f"{before}{AGAIN_BEGIN}\n{AGAIN_END}\n\n{mark}{after}"
        DOCUMENT.write_text(replace_section(page, said + "\n", AGAIN_BEGIN, AGAIN_END))


def names_site(result: dict[str, Any]) -> bool:
    """Return true if the planted line is named as that of any rank."""
    sites = lines_of(BY_NAME[result["plant"]].site, result["variant"], result["framework"])
    places = shown_verdict(result["account"]).get("places") or {}
    for place in places.values():
        if (str(place.get("file", "")).rpartition("/")[2], place.get("line")) in sites:
            return True
    return False


def _head(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "# Accuracy: how often `profkit why` names the right rank, class and line"
    yield ""
    yield (
        "Each job hangs in one planted way. profkit sees only its own files. After the verdict "
        "every process is killed, and `profkit why` reads the folder. The jobs run torch or "
        "PaddlePaddle over gloo, on two cores without a GPU. In most jobs the limit without a "
        "step is 4 s (`--hang-after 4`, default 30). `benchmarks/hangs` contains the jobs. A "
        "held-out job has another model, another rank, and hangs in other code on another line, "
        "unless it hangs inside a call of the framework."
    )
    yield ""
    yield (
        "*First run*: the results before any verdict was fixed. *In time*: after the limit or 10 "
        f"steps, whichever is longer, and {TICK_S:g} s: the ranks look each second, and then the "
        "alarm does. Jobs that end by themselves have no such time. `device` and "
        "`device_everywhere` use the framework's own function that waits for a device, with "
        "a stand-in below it. A size or type that differs makes gloo abort a rank, so that such a "
        "job ends and does not hang (`mismatch_size`, `mismatch_type`, and `skipped_call` in "
        "Paddle). No verdict was fixed for these."
    )
    yield ""
    yield from _say_missing(results)
    yield ""


def _say_missing(results: list[dict[str, Any]]) -> Iterator[str]:
    """Say how many of the jobs have no result."""
    done = set(map(key_of, results))
    for framework in BOTH:
        plants = [plant for plant in (*PLANTS, HEALTHY) if framework in plant.frameworks]
        for ranks in (2, 4):
            for variant in (DEVELOPMENT, HELD_OUT):
                names = [
                    plant.name
                    for plant in plants
                    if (plant.name, framework, ranks, variant, USUAL_LIMIT_S) not in done
                ]
                if names:
                    yield f"- not run: {framework}, {ranks} ranks, {variant}: {', '.join(names)}"


def _share(results: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Return how many of the jobs have all of these parts right, if they have any of them."""
    marks = [[judge(result).get(name) for name in names] for result in results]
    own = [mark for mark in marks if any(each is not None for each in mark)]
    right = sum(False not in mark for mark in own)
    return _say_share(right, len(own))


def _say_share(right: int, count: int) -> str:
    """Return a share, rounded down: no miss must round up to a goal."""
    return f"{100 * right // count}% of {count}" if count else "-"


def _summary(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of goals."""
    first = {tuple(each["job"]): each["wrong"] for each in json.loads(FIRST.read_text())}
    hangs = [result for result in results if result["plant"] != HEALTHY.name]
    sides = [[result for result in hangs if result["variant"] == each] for each in VARIANTS]
    yield f"|  | goal | {DEVELOPMENT} | {HELD_OUT} | {DEVELOPMENT}, first run | first run |"
    yield "|---|---|---|---|---|---|"
    rows = {
        f"right rank and class first{HUNG}": ("95%", ["class", "rank"]),
        f"right file and line, if the rank is at a line of the job{HUNG}": ("95%", ["line"]),
        "right rank and class first": ("95%", ["class", "rank"]),
        "right file and line, if the rank is at a line of the job": ("95%", ["line"]),
        "verdict in time": ("-", ["in time"]),
        "no alarm before the hang": ("100%", ["no alarm before"]),
    }
    for title, (goal, names) in rows.items():
        wanted = sides
        if title.endswith(HUNG):
            wanted = [[each for each in side if not was_aborted(each)] for side in sides]
        cells = [_share(side, names) for side in wanted]
        for side in wanted:
            own = [result for result in side if judge(result).get(names[0]) is not None]
            right = sum(not set(names) & set(first[key_of(result)]) for result in own)
            cells.append(_say_share(right, len(own)))
        yield f"| {title} | {goal} | {' | '.join(cells)} |"
    healthy = [result for result in results if result["plant"] == HEALTHY.name]
    quiet = sum(judge(result)["quiet"] is True for result in healthy)
    yield ""
    yield f"{quiet} of {len(healthy)} healthy jobs with long parts raised no alarm."
    yield ""
    yield HOURS_BEGIN
    yield ""
    yield say_hours()
    yield ""
    yield HOURS_END


def _table(results: list[dict[str, Any]]) -> Iterator[str]:
    names = ("class", "rank", "line", "in time", "no alarm before", "quiet")
    head = "| framework | ranks | variant | limit, s | class | rank | file and line | in time |"
    yield f"{head} no alarm before | healthy: quiet |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for key in sorted({key_of(result)[1:] for result in results}):
        own = [result for result in results if key_of(result)[1:] == key]
        cells = [_share(own, [name]) for name in names]
        yield "| " + " | ".join([*map(str, key[:3]), f"{key[3]:g}", *cells]) + " |"
    misses, rows = [], []
    for result in results:
        shown = shown_verdict(result["account"])
        said = result["said_after_s"]
        cells = [*map(str, key_of(result)[:4]), f"{result['limit_s']:g}"]
        wrong = ", ".join(wrong_parts(result))
        if wrong:
            misses.append(f"- {' '.join(cells[:4])}: {wrong}: {shown.get('text')}")
        cells.append(shown.get("class", result["account"].get("state")))
        cells += ["-" if said is None else f"{said:.1f}", wrong or "right"]
        rows.append("| " + " | ".join(cells) + " |")
    yield ""
    yield "## Misses"
    yield ""
    yield from misses or ["None."]
    yield ""
    yield from say(read_kept())
    yield ""
    yield "## All hangs"
    yield ""
    yield "| hang | framework | ranks | variant | limit, s | verdict | said after, s | wrong |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from rows
