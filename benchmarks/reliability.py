"""Runs the checks of what profkit promises whatever is done to it, and writes docs/reliability.md.

    python benchmarks/reliability.py [--only 1 3 ...] [--part 0.1 | --short] [--render]

A check is one or more commands, each a benchmark that says its figure in its last line, or tests. What they said is
kept in docs/reliability/results.json with date, machine and versions, so that one can be repeated alone; the page is made from
that file, by `--render` without running anything. `--part 0.1` runs a tenth of each count, `--short` what continuous integration
runs; the page shows the longest that was run, and says of how much. Exits 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import figures
import harmless

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "reliability.md"
RESULTS = TOP / "docs" / "reliability" / "results.json"
UNITS = {"s": "s", "mb": "MB"}
PACKAGES = ("profkit", "pyarrow", "numpy", "torch", "textual")

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    """A benchmark: how much of it there is at full length and in short, and what else it is told; `fails` where it has to."""

    name: str
    option: str = ""
    full: int = 0
    short: int = 0
    more: str = ""
    fails: bool = False

    def words(self, amount: int) -> list[str]:
        return [
            f"benchmarks/{self.name}.py",
            *([self.option, str(amount)] if self.option else []),
            *self.more.split(),
        ]

    def amount(self, part: float) -> int:
        return max(self.short, round(self.full * part))


@dataclass(frozen=True)
class Tests:
    """Tests, of which there is no more and no less."""

    where: str
    named: str = ""
    fails: bool = False
    full: int = 0

    def amount(self, part: float) -> int:
        return self.full

    def words(self, amount: int) -> list[str]:
        return [
            "-m",
            "pytest",
            "-q",
            "-rN",
            *self.where.split(),
            *(["-k", self.named] if self.named else []),
        ]


@dataclass(frozen=True)
class Check:
    """A promise, and what holds it."""

    title: str
    promise: str
    steps: Sequence[Script | Tests]


CHECKS: Mapping[str, Check] = {
    "1": Check(
        "SIGKILL at any moment",
        "Every row older than a second, in which the job had a processor, is read again, and no other; `verify` names the state; whatever else is written is there whole or not at all.",
        (Script("kill", "--trials", 200, 6), Script("interrupt", "--trials", 200, 3)),
    ),
    "2": Check(
        "A file cut at every byte",
        "Only rows that were written are read; the run is torn, or ended early where it had no end record.",
        (
            Script("truncate", "--size", 65_536, 2_000),
            Tests("tests/trace/test_survival.py", "cut_at_any_byte"),
        ),
    ),
    "3": Check(
        "Bytes flipped, 50,000 times in each format",
        "No crash, no traceback, no hang over 5 s, no memory that grows, and no other figure without a word.",
        (
            Script("mutate_runs", "--count", 50_000, 1_000),
            Script("mutate_traces", "--count", 50_000, 100),
            Script("mutate_logs", "--count", 2_100, 20),
        ),
    ),
    "4": Check(
        "The n-th write fails, for all n",
        "The job goes on and ends as without profkit; whole files are left, and the run says why it ended early.",
        (
            Script("io_errors", "--most", 200, 8),
            Tests(
                "tests/trace/test_survival.py",
                "fails_at_any_time or broken_disk or disk_is_full or grow_no_more or vanishes",
            ),
        ),
    ),
    "5": Check(
        "An exception in every hook and collector",
        "The job trains to the bit as without profkit, with one warning for each place; the report counts them.",
        (
            Tests(
                "tests/instrument/test_frameworks.py tests/instrument/test_loader_workers.py",
                "fault_of_ours",
            ),
            Tests(
                "tests/collectors/test_in_a_run.py tests/callbacks/test_told_steps.py",
                "failed or fails",
            ),
        ),
    ),
    "6": Check(
        "A rank dies",
        "The others end as without profkit; the missing rank is named, and nothing is said about who waited for whom.",
        (
            Tests(
                "tests/instrument/test_run_command.py tests/cli/test_trace_faults.py",
                "rank_that_dies or killed_rank",
            ),
            Tests("tests/trust/test_unanswerable.py", "rank"),
        ),
    ),
    "7": Check(
        "A rank or a disk hangs",
        "No call of profkit's waits for another rank or a device; a rank that was stopped is named, and loses no row; the end of a job waits at most two seconds for a "
        "disk.",
        (
            Tests("tests/trust/test_hanging_rank.py"),
            Tests("tests/trace/test_survival.py", "hangs"),
            Tests("tests/trust/test_audit.py", "meets"),
        ),
    ),
    "8": Check(
        "Forked and spawned workers",
        "Files stay whole, no row is there twice, no child writes or ends the trace.",
        (
            Tests("tests/trace/test_survival.py", "forked or outlives"),
            Tests(
                "tests/instrument/test_loader_workers.py",
                "same_to_the_bit or no_forks or descriptor",
            ),
            Tests("tests/trust/test_forks.py"),
        ),
    ),
    "9": Check(
        "Clocks that disagree",
        "Hosts 50 ms apart give the same figures, a clock that is set back an hour while the job runs too, and one that is 100 ppm fast moves them by no more than ten "
        "times that: no figure hangs on an order of times on two hosts.",
        (Tests("tests/trust/test_clocks.py"),),
    ),
    "10": Check(
        "Times that cannot be",
        "Zero, negative, 236 years, out of order: dropped or repaired, counted to the row, and the ranking is that of the clean trace.",
        (
            Tests(
                "tests/importers/test_kineto.py tests/importers/test_base.py",
                "times_that_cannot_be",
            ),
        ),
    ),
    "11": Check(
        "Overhead",
        "At most 0.15 ms a step, and 1 % of a long one, by the mean: where the interval holds the limit, the next run may be over it; measured in each run, and against "
        "peers in [performance](performance.md).",
        (Script("overhead", "--turns", 20, 6, "--processes 4 --keep-heap"),),
    ),
    "12": Check(
        "A long run",
        "Memory does not grow, no descriptor and no thread is left, every step is there.",
        (Script("soak", "--minutes", 60, 4),),
    ),
    "13": Check(
        "Size",
        "A run of 32 ranks opens in seconds and bounded memory; how that grows is in [performance](performance.md).",
        (Script("open_trace"),),
    ),
    "14": Check(
        "The same bytes",
        "Reports and comparisons of a trace are equal to the byte, whatever the seed of hashes, the threads and the order of files.",
        (Tests("tests/trust/test_determinism.py"),),
    ),
    "15": Check(
        "Old and new schemas",
        "A kept run of each schema version is read to the value; a newer major version is refused by name.",
        (
            Tests(
                "tests/trust/test_golden.py tests/trace/test_contract.py",
                "earlier or kept or newer or older",
            ),
        ),
    ),
    "16": Check(
        "Names that are code",
        "Terminals, HTML, SVG, Markdown, spreadsheets and the terminal interface show them and do nothing else.",
        (
            Tests(
                "tests/trust/test_hostile_names.py tests/report/test_shapes.py tests/tui",
                "no_terminal or formula or hostile or markdown_shows or steer or browser",
            ),
        ),
    ),
    "17": Check(
        "Secrets around a job",
        "Twenty secret-shaped variables, arguments and rows of another tool's file are in nothing that is written; files are their owner's alone.",
        (Tests("tests/trust/test_secrets.py tests/test_environment.py"),),
    ),
    "18": Check(
        "No network, no code, no file elsewhere",
        "Reading, showing, importing and exporting open no socket, build no class from a pickle, start no process, and write only where they are told.",
        (Tests("tests/trust/test_audit.py", "nothing_but"),),
    ),
    "19": Check(
        "Objects, results, start-up",
        "DDP models stay what they were (copies, pickles, join, hooks of the job), every order of imports is recorded, and a hint says what was seen.",
        (Script("harmless"), Tests("tests/harmless")),
    ),
    "A": Check(
        "Guard of the guards",
        "With validation and checksums taken away, check 3 must fail, and it does.",
        (
            Script("mutate_runs", "--count", 2_000, 200, "--without-validation", fails=True),
            Tests(
                "tests/importers/test_mutations.py tests/trust/test_damage.py",
                "planted or without_validation",
            ),
        ),
    ),
    "B": Check(
        "Questions without an answer",
        "Every known way in which nobody can tell gives 'cannot judge' or an error, in both directions, and gates say so.",
        (Tests("tests/trust/test_unanswerable.py"),),
    ),
}


def run(step: Script | Tests, part: float) -> Result:
    """Run one command, and keep its last line: what it measured."""
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
    """The last line that a command printed; of JSON, each form with its own figures."""
    try:
        found = json.loads(said)
    except ValueError:
        return next((line.strip("= ") for line in reversed(said.splitlines()) if line.strip()), "")
    return "; ".join(_added(found["cases"]) if "cases" in found else _in_words(found))


def _added(cases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    """What recording adds to a step, by case."""
    for case, modes in cases.items():
        own = modes["profkit"]
        yield f"{case}: {own['over_bare_ms']:.3f} ms (95 % interval {own['low_ms']:.3f} to {own['high_ms']:.3f})"


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
    """Names end in their unit, where there is one."""
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


def render(results: Mapping[str, Result]) -> str:
    lines = [
        "# What holds whatever is done to it",
        "",
        "A profiler that harms a job is not used twice, and one that lies is worse than none. Each line is a promise, the command that tries to break it, and what it",
        "found. `make trust` runs all of it again (hours); `python benchmarks/reliability.py --only 3` runs one line, `--part 0.1` a tenth of it. Where less than all of it was run, it says so.",
        "",
        f"Measured on {'; '.join(sorted({result['machine'] for result in results.values()}))} that other work used as well.",
        "",
        "| | check | promise | how | found | date |",
        "|---|---|---|---|---|---|",
        *(line for number, check in CHECKS.items() for line in _lines(number, check, results)),
        "",
        *_matrix(),
        "What is not promised: a run that was killed has no checksums yet, so there a flipped bit is found only where it breaks the file; a record (JSON) in which a",
        "digit became another digit is not noticed; no order of times on two hosts is claimed, so none is checked.",
        "",
        f"Versions: {'; '.join(sorted({result['versions'] for result in results.values()}))}.",
    ]
    return "\n".join(lines) + "\n"


def _matrix() -> list[str]:
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
        f"`python benchmarks/harmless.py` runs each case bare and under `profkit run`, and compares weights, losses, errors, warnings and random numbers to the bit. Equal: {equal} of {len(rows)}.",
        "`tests/harmless` runs the same cases, and the orders in which a job can import its framework, in continuous integration.",
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
            f"| {framework} | {case.replace('_', ' ')} | {ranks} | {words[0]} | {words[1]} | {same} |"
        )
    return [*lines, ""]


def _processor() -> str:
    names = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    )
    return next(names, platform.machine())


def _lines(number: str, check: Check, results: Mapping[str, Result]) -> Iterator[str]:
    for place, step in enumerate(check.steps):
        found = found_of(step, results)
        words = step.words(found["amount"] if found else step.full)
        told = _told(step, found) if found else "not run yet"
        head = (number, check.title, check.promise) if not place else ("", "", "")
        yield (
            "| "
            + " | ".join([*head, f"`{_shown(words)}`", told, found["date"] if found else ""])
            + " |"
        )


def _told(step: Script | Tests, found: Result) -> str:
    figure = str(found["figure"]).replace("|", "\\|")
    less = f" ({found['amount']:,} of {step.full:,})" if found["amount"] < step.full else ""
    return f"{'' if found['kept'] else '**BROKEN** '}{figure}{less}"


def _shown(words: Sequence[str]) -> str:
    return " ".join(
        f'"{word}"' if " " in word else word
        for word in (["python", *words] if words[0] != "-m" else words[1:])
    )


def _key(step: Script | Tests, amount: int) -> str:
    return " ".join(step.words(amount))


def found_of(step: Script | Tests, results: Mapping[str, Result]) -> Result | None:
    """What the longest run of a command found."""
    return max(
        (result for result in results.values() if _is_of(step, result)),
        key=lambda result: int(result["amount"]),
        default=None,
    )


def _is_of(step: Script | Tests, result: Result) -> bool:
    return bool(result["command"] == _key(step, result["amount"]))


def kept_results() -> dict[str, Result]:
    """What was measured before, of the commands that there still are."""
    found: dict[str, Result] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    )
    steps = [step for check in CHECKS.values() for step in check.steps]
    return {
        key: result for key, result in found.items() if any(_is_of(step, result) for step in steps)
    }


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
    """With all that quotes them."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    figures.write()


if __name__ == "__main__":
    sys.exit(main())
