"""Make docs/reliability.md from the kept results of its checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harmless
from promises import CHECKS, Check, Script, Tests

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "docs" / "reliability" / "results.json"
Result = Mapping[str, Any]


def render(results: Mapping[str, Result]) -> str:
    """Return the page."""
    machines = "; ".join(sorted({result["machine"] for result in results.values()}))
    versions = "; ".join(sorted({result["versions"] for result in results.values()}))
    lines = [
        "# Reliability",
        "",
        (
            "Each line is a promise, the command that tries to break it, and its result. `make "
            "trust` runs all"
        ),
        (
            "checks, which takes hours. `python benchmarks/reliability.py --only 3` runs one of "
            "them, and"
        ),
        (
            "`--part 0.1` runs a tenth of each count. If only a part of a check was run, its "
            "result says how much."
        ),
        "",
        f"Measured on {machines}, while other work used the machine as well.",
        "",
        "| | check | promise | command | result | date |",
        "|---|---|---|---|---|---|",
        *(line for number, check in CHECKS.items() for line in _lines(number, check, results)),
        "",
        *_matrix(results),
        "## Limits",
        "",
        (
            "A killed run has no checksums yet, so a flipped bit is found only if it breaks the "
            "file. A changed"
        ),
        (
            "digit in a JSON record other than a status is not noticed. profkit makes no "
            "statement about the order of times on two"
        ),
        "hosts, so no check covers it.",
        "",
        f"Versions: {versions}.",
    ]
    return "\n".join(lines) + "\n"


def _matrix(results: Mapping[str, Result]) -> list[str]:
    """Return the table of jobs that were run bare and recorded, one line per case."""
    if not harmless.KEPT.exists():
        return []
    rows = json.loads(harmless.KEPT.read_text(encoding="utf-8"))
    cases: dict[tuple[str, str], list[Result]] = {}
    for row in rows:
        cases.setdefault((row["framework"], row["case"]), []).append(row)
    equal = sum(row["equal"] for row in rows)
    lines = [
        "## Jobs with several ranks, bare and recorded",
        "",
        (
            "`python benchmarks/harmless.py` runs each case bare and under `profkit run`, and "
            "compares weights,"
        ),
        "losses, errors, warnings and random numbers to the bit.",
        (
            f"Equal: {equal} of {len(rows)}. Continuous integration runs the same cases in "
            "`tests/harmless`,"
        ),
        "together with the orders in which a job can import its framework.",
        *_age(results),
        "",
        "| framework | case | ranks | bare | recorded | equal to the bit |",
        "|---|---|---|---|---|---|",
    ]
    for (framework, case), found in cases.items():
        ranks = ", ".join(str(row["ranks"]) for row in found)
        same = "yes" if all(row["equal"] for row in found) else "**no**"
        first = found[0]
        words = [each.replace("|", "\\|") for each in (first["bare"], first["recorded"])]
        lines.append(
            f"| {framework} | {case.replace('_', ' ')} | {ranks} | {words[0]} | {words[1]} | "
            f"{same} |"
        )
    return [*lines, ""]


def _age(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield a sentence if the table is older than the command's present version."""
    for number, check in CHECKS.items():
        for step in check.steps:
            if "harmless.py" in " ".join(step.words(step.full)) and not found_of(step, results):
                yield f"These results are of an earlier version: see check {number} above."


def _lines(number: str, check: Check, results: Mapping[str, Result]) -> Iterator[str]:
    for place, step in enumerate(check.steps):
        found = found_of(step, results)
        words = step.words(found["amount"] if found else step.full)
        outcome = _outcome(step, found) if found else "not run yet"
        head = (number, check.title, check.promise) if not place else ("", "", "")
        yield (
            "| "
            + " | ".join([*head, f"`{_shown(words)}`", outcome, found["date"] if found else ""])
            + " |"
        )


def _outcome(step: Script | Tests, found: Result) -> str:
    figure = str(found["figure"]).replace("|", "\\|")
    less = f" ({found['amount']:,} of {step.full:,})" if found["amount"] < step.full else ""
    return f"{'' if found['kept'] else '**BROKEN** '}{figure}{less}"


def _shown(words: Sequence[str]) -> str:
    return " ".join(
        f'"{word}"' if " " in word else word
        for word in (["python", *words] if words[0] != "-m" else words[1:])
    )


def found_of(step: Script | Tests, results: Mapping[str, Result]) -> Result | None:
    """Return the result of the longest run of a command."""
    return max(
        (result for result in results.values() if _is_of(step, result)),
        key=lambda result: int(result["amount"]),
        default=None,
    )


def _is_of(step: Script | Tests, result: Result) -> bool:
    return bool(result["command"] == " ".join(step.words(result["amount"])))


def kept_results() -> dict[str, Result]:
    """Return earlier results of commands that still exist."""
    found: dict[str, Result] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    )
    steps = [step for check in CHECKS.values() for step in check.steps]
    return {
        key: result for key, result in found.items() if any(_is_of(step, result) for step in steps)
    }
