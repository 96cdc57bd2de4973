"""Measure how well profkit and two libraries find changes in synthetic histories.

    python benchmarks/history.py [--histories 1000] [--only profkit] [--write]

A history is 30 runs whose times per sample differ by 1 %. A false alarm is a history without a
change for which one is reported. Power is the share of histories with one change of 3 %, at any run
with 5 to 25 runs before it, for which exactly one change is reported. A change that was undone
lasts 6 to 10 runs, with 5 or more on either side; it is found if exactly two changes are reported.
`ruptures` and `apache-otava` are compared with their documented settings if they are installed.
apache-otava pins numpy: `--only apache-otava` measures it in an environment of its own. `--write`
keeps the figures in docs/performance/history.json and renews the table in docs/history.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.analysis.run_series import find_course

Floats = npt.NDArray[np.float64]

RUNS, SPREAD, STEP = 30, 0.01, 0.03
NEAR = 2
"""A change is placed if it is reported at most so many runs away."""

TOP = Path(__file__).resolve().parents[1]
FIGURES, PAGE = TOP / "docs/performance/history.json", TOP / "docs/history.md"
BEGIN, END = "<!-- figures: benchmarks/history.py -->", "<!-- end of figures -->"


# -- noise -----------------------------------------------------------------------------------------


def normal(random: np.random.Generator) -> Floats:
    return random.normal(0, SPREAD, RUNS)


def heavy_tails(random: np.random.Generator) -> Floats:
    """Student's t with 3 degrees of freedom, scaled to the same standard deviation."""
    return random.standard_t(3, RUNS) * SPREAD / 3**0.5


def outliers(random: np.random.Generator) -> Floats:
    """Every twentieth run met a busy machine, and took 10 % longer."""
    return random.normal(0, SPREAD, RUNS) + 0.1 * (random.random(RUNS) < 0.05)


def one_sided(random: np.random.Generator) -> Floats:
    """A machine is often a little slower and never faster: an exponential distribution."""
    return random.exponential(SPREAD, RUNS)


def drifting(random: np.random.Generator) -> Floats:
    """Successive runs resemble each other: an autoregression with 0.3."""
    noise = random.normal(0, SPREAD * (1 - 0.3**2) ** 0.5, RUNS)
    noise[0] /= (1 - 0.3**2) ** 0.5
    for place in range(1, RUNS):
        noise[place] += 0.3 * noise[place - 1]
    return noise


NOISES: Mapping[str, Callable[[np.random.Generator], Floats]] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "outliers of 10 %": outliers,
    "one-sided": one_sided,
    "drifting (autocorrelation 0.3)": drifting,
}


# -- detectors -------------------------------------------------------------------------------------


def by_profkit(values: Floats) -> list[int]:
    return [change.at for change in find_course(values.tolist()).changes]


def by_ruptures(values: Floats) -> list[int]:
    """PELT with squared errors, and the BIC's penalty for a robust estimate of the noise."""
    import ruptures

    logs = np.log(values)
    spread = np.median(np.abs(np.diff(logs))) / (0.6745 * 2**0.5)
    penalty = 2 * np.log(len(logs)) * max(spread, 1e-9) ** 2
    found = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(logs).predict(pen=penalty)
    return list(map(int, found[:-1]))


def by_otava(values: Floats) -> list[int]:
    """Otava's E-divisive means with Student's t, as its command line runs it."""
    from otava import analysis

    found: Any = analysis.compute_change_points(values.tolist(), window_len=50, max_pvalue=0.001)
    points = found[0] if isinstance(found, tuple) else found
    return [int(point.index) for point in points]


DETECTORS: Mapping[str, tuple[str, Callable[[Floats], list[int]]]] = {
    "profkit": ("profkit", by_profkit),
    "ruptures": ("ruptures", by_ruptures),
    "apache-otava": ("otava", by_otava),
}


# -- measurement -----------------------------------------------------------------------------------


def judge_one(detector: str, noise: str, step: float, seed: int) -> tuple[bool, bool]:
    """Report a false alarm without a change; with one, if it is found, and if it is placed."""
    random = np.random.default_rng([seed, sorted(NOISES).index(noise)])
    logs = NOISES[noise](random)
    place = int(random.integers(5, RUNS - 5 + 1))
    logs[place:] += np.log1p(step)
    found = DETECTORS[detector][1](100e6 * np.exp(logs))
    if not step:
        return bool(found), False
    is_found = len(found) == 1
    return is_found, is_found and abs(found[0] - place) <= NEAR


def judge_undone(detector: str, noise: str, step: float, seed: int) -> tuple[bool, bool]:
    """Report if a change that was undone is found, and if both of its ends are placed."""
    random = np.random.default_rng([seed, sorted(NOISES).index(noise), 1])
    logs = NOISES[noise](random)
    first = int(random.integers(5, 15 + 1))
    ends = first, first + int(random.integers(6, 10 + 1))
    logs[slice(*ends)] += np.log1p(step)
    found = DETECTORS[detector][1](100e6 * np.exp(logs))
    if len(found) != len(ends):
        return False, False
    return True, all(abs(at - end) <= NEAR for at, end in zip(found, ends, strict=True))


def measure(histories: int, only: str) -> dict[str, Any]:
    """Return the figures of each detector that is installed, by the kind of noise."""
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for detector, (module, _) in DETECTORS.items():
            if only not in {"", detector}:
                continue
            if importlib.util.find_spec(module) is None:
                print(f"{module} is not installed", file=sys.stderr)
                continue
            figures: dict[str, Any] = {}
            for noise in NOISES:
                began, hits = time.perf_counter(), []
                for judge, step in ((judge_one, 0.0), (judge_one, STEP), (judge_undone, STEP)):
                    ask = partial(judge, detector, noise, step)
                    judged = pool.map(ask, range(histories), chunksize=25)
                    hits.append([sum(each) for each in zip(*judged, strict=True)])
                each_ms = 1e3 * (time.perf_counter() - began) / (3 * histories)
                figures[noise] = {"false_alarms": hits[0][0], "ms": each_ms}
                figures[noise] |= dict(zip(("found", "placed"), hits[1], strict=True))
                figures[noise]["undone_found"] = hits[2][0]
                print(detector, noise, *hits, f"{each_ms:.1f} ms", file=sys.stderr)
            found[detector] = {"histories": histories, "noise": figures}
    return found


def as_table(figures: Mapping[str, Any]) -> str:
    lines = [
        "30 runs, standard deviation 1 %, change 3 %. In brackets: 95 % intervals.",
        "",
        f"| detector | noise | false alarms | power | placed within {NEAR} runs | power, undone |",
        "|---|---|---|---|---|---|",
    ]
    for detector, found in figures.items():
        for noise, figure in found["noise"].items():
            shares = []
            for name in ("false_alarms", "found", "placed", "undone_found"):
                if name not in figure:  # measured by an earlier version
                    shares.append("")
                    continue
                hits = figure[name]
                low, high = wilson(hits, found["histories"])
                share = 100 * hits / found["histories"]
                shares.append(f"{share:.1f} % ({low:.1f} % to {high:.1f} %)")
            lines.append(f"| {detector} | {noise} | {' | '.join(shares)} |")
    return "\n".join(lines)


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share, in per cent."""
    share = hits / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--only", choices=["", *DETECTORS], default="")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    figures |= measure(args.histories, args.only)
    table = as_table({name: figures[name] for name in DETECTORS if name in figures})
    print(table)
    if args.write:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        block = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
        page = block.sub(f"{BEGIN}\n{table}\n{END}", PAGE.read_text(encoding="utf-8"))
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
