"""Run the checks of profkit's promises and write docs/reliability.md.

    python benchmarks/reliability.py [--only 1 3 ...] [--part 0.1 | --short] [--render]

A check is one or more commands: benchmarks that print their figure in their last line, or tests.
The output is kept in docs/reliability/results.json with date, machine and versions, so that one
check can be repeated alone. The page is made from that file, with `--render` without running
anything. `--part 0.1` runs a tenth of each count, `--short` what continuous integration runs. The
page shows the longest run of each check and its share. Exits 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import figures
from promises import CHECKS, Script, Tests
from reliability_page import RESULTS, TOP, Result, kept_results, render

PAGE = TOP / "docs" / "reliability.md"
UNITS = {"s": "s", "mb": "MB"}
PACKAGES = ("profkit", "pyarrow", "numpy", "torch", "textual")


def run(step: Script | Tests, part: float) -> Result:
    """Run one command and return its last line, which is what it measured."""
    words = step.words(step.amount(part))
    print("   python " + " ".join(words), file=sys.stderr)
    begin = time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, *words], cwd=TOP, env=env, capture_output=True, text=True, check=False
    )
    if bool(done.returncode) != step.fails:
        print(done.stdout[-4000:] + done.stderr[-2000:], file=sys.stderr)
    return {
        "command": " ".join(words),
        "figure": _figure(done.stdout),
        "kept": bool(done.returncode) == step.fails,
        "seconds": round(time.perf_counter() - begin, 1),
        "amount": step.amount(part),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores of {_processor()}",
        "versions": _versions(),
    }


def _figure(said: str) -> str:
    """Return the last line that a command printed. JSON gives one part per form."""
    try:
        found = json.loads(said)
    except ValueError:
        return next((line.strip("= ") for line in reversed(said.splitlines()) if line.strip()), "")
    return "; ".join(_added(found["cases"]) if "cases" in found else _in_words(found))


def _added(cases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    """Yield the added time per step, by case."""
    for case, modes in cases.items():
        own = modes["profkit"]
        yield (
            f"{case}: {own['over_bare_ms']:.3f} ms (95 % interval {own['low_ms']:.3f} to "
            f"{own['high_ms']:.3f})"
        )


def _in_words(found: Mapping[str, Any]) -> Iterator[str]:
    for form, said in found.items():
        if isinstance(said, dict):
            words = [
                _with_unit(name, len(value) if isinstance(value, list) else value)
                for name, value in said.items()
                if not isinstance(value, dict)
            ]
            yield f"{form}: {', '.join(words)}" if words else form


def _with_unit(name: str, value: object) -> str:
    """Return a figure in words. Its name ends in its unit, if it has one."""
    stem, _, unit = name.replace("_", " ").rpartition(" ")
    return f"{stem} {value} {UNITS[unit]}" if unit in UNITS else f"{value} {name.replace('_', ' ')}"


def _versions() -> str:
    return ", ".join(
        [
            f"Python {platform.python_version()}",
            *(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
        ]
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    names = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    )
    return next(names, platform.machine())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--part", type=float, default=1.0, help="how much of each count (default: all)"
    )
    length.add_argument("--short", dest="part", action="store_const", const=0.0)
    parser.add_argument("--render", action="store_true", help="only write the page again")
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    broken = False
    for number in [] if options.render else options.only:
        print(f"== {number} {CHECKS[number].title}", file=sys.stderr)
        for step in CHECKS[number].steps:
            found = run(step, options.part)
            broken |= not found["kept"]
            _keep({**kept_results(), found["command"]: found})
    _keep(kept_results())
    return 1 if broken else 0


def _keep(results: Mapping[str, Result]) -> None:
    """Write the results, and the pages that quote them."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    figures.write()


if __name__ == "__main__":
    sys.exit(main())
