"""Pools what several runs of one benchmark found, made on different days."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from profkit.analysis.estimate import Z_95
from profkit.analysis.student import student_of_few

FEWEST = 2
"""A single run has nothing to be pooled with."""

Brief = dict[str, Any]
"""The date of a run, and for each case what was added to the bare step, with its interval."""


class Added(NamedTuple):
    """What a mode added to a step in one run, or in several, in ms."""

    value: float
    half: float
    """Half of the 95 % interval."""


def brief(result: Mapping[str, Any], mode: str) -> Brief:
    """Return what is kept of a run when the next one replaces it."""
    cases = {}
    for case, modes in result["found"]["cases"].items():
        row = modes[mode]
        kept = {name: row[name] for name in ("over_bare_ms", "low_ms", "high_ms")}
        cases[case] = {"bare_ms": modes["bare"]["median_ms"], **kept}
    return {"date": result["date"], "cases": cases}


def all_runs(result: Mapping[str, Any], mode: str) -> list[Brief]:
    """Return all runs in their order; the last one is the result's own."""
    return [*result.get("earlier", []), brief(result, mode)]


def pool(runs: Sequence[Added]) -> Added:
    """Return the mean of runs. Those that are more certain count more.

    If runs differ by more than their intervals allow for, the rest is a difference between runs,
    with which all of them are as uncertain (the random effects of DerSimonian and Laird).
    """
    values = np.array([each.value for each in runs])
    variances = np.array([(each.half / Z_95) ** 2 for each in runs])
    weights = 1 / variances
    apart = float(weights @ (values - weights @ values / weights.sum()) ** 2)
    freedom = len(runs) - 1
    scale = weights.sum() - weights @ weights / weights.sum()
    between = max(0.0, apart - freedom) / scale if freedom else 0.0
    weights = 1 / (variances + between)
    quantile = student_of_few(freedom) if between else Z_95
    value = float(weights @ values / weights.sum())
    return Added(value, float(quantile / np.sqrt(weights.sum())))


def pooled_section(
    runs: Sequence[Brief], mode: str, replaced: int = 0, replaced_code: str = ""
) -> Iterable[str]:
    """Yield a table of all runs and their pooled estimates; nothing of a single run.

    The first `replaced` runs measured other code. They are pooled on their own.
    """
    if len(runs) < FEWEST:
        return
    said = (
        f"All runs of this benchmark, `{mode}`. The machine had another speed each time, as the "
        "bare steps show. *Pooled*: the mean, in which runs that are more certain count more; its "
        "interval allows for the differences between the runs."
    )
    if replaced:
        said += f" Runs *before* measured {replaced_code}."
    yield said
    lines = ["| step | run | bare step | added | interval |", f"|{' --- |' * 5}"]
    for case in runs[-1]["cases"]:
        lines += _rows_of(case, runs[:replaced], " before")
        lines += _rows_of(case, runs[replaced:])
    yield "\n".join(lines)


def _rows_of(case: str, runs: Sequence[Brief], when: str = "") -> Iterator[str]:
    """Yield a row for each of the runs that have this case, and one for all of them."""
    found = []
    for run in runs:
        row = run["cases"].get(case)
        if row is None:
            continue
        low, high = row["low_ms"], row["high_ms"]
        found.append(Added(row["over_bare_ms"], (high - low) / 2))
        name, bare = f"{run['date']}{when}", f"{row['bare_ms']:.3g} ms"
        yield _line(case, name, bare, row["over_bare_ms"], low, high)
    if len(found) >= FEWEST:
        value, half = pool(found)
        name = f"**pooled, {len(found)} runs{when}**"
        yield _line(case, name, "-", value, value - half, value + half)


def _line(case: str, name: str, bare: str, added: float, low: float, high: float) -> str:
    return f"| {case} | {name} | {bare} | {added:.3f} ms | {low:.3f} ms to {high:.3f} ms |"
