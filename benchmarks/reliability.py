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
    """A benchmark: its counts at full length and in short, and more arguments.

    `fails` marks one that has to fail.
    """

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
    """Tests, which have one length only."""

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
    """A promise, and the commands that try to break it."""

    title: str
    promise: str
    steps: Sequence[Script | Tests]


CHECKS: Mapping[str, Check] = {
    "1": Check(
        "SIGKILL at any moment",
        "Every row can be read once it is one second old, if the job had a CPU in that second. "
        "No row is invented. `verify` names the state. Every other file is whole or absent.",
        (Script("kill", "--trials", 200, 6), Script("interrupt", "--trials", 200, 3)),
    ),
    "2": Check(
        "A file cut at every byte",
        "profkit reads only rows that were written. It reports the run as torn, or as ended "
        "early if it has no end record.",
        (
            Script("truncate", "--size", 65_536, 2_000),
            Tests("tests/trace/test_survival.py", "cut_at_any_byte"),
        ),
    ),
    "3": Check(
        "Bytes flipped, 50,000 times in each format",
        "No crash, no traceback, no hang over 5 s, no growing memory, and no changed figure "
        "without a message.",
        (
            Script("mutate_runs", "--count", 50_000, 1_000),
            Script("mutate_traces", "--count", 50_000, 100),
            Script("mutate_logs", "--count", 2_100, 20),
        ),
    ),
    "4": Check(
        "The n-th write fails, for all n",
        "The job continues and ends as without profkit. The files are whole, and the run says "
        "why it ended early.",
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
        "The job trains to the same bits as without profkit, with one warning per place. The "
        "report counts the errors.",
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
        "The other ranks end as without profkit. profkit names the missing rank and makes no "
        "statement about waiting.",
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
        "No call of profkit waits for another rank or a device. profkit names a stopped rank, "
        "which loses no row. At its end, a job waits at most two seconds for a disk.",
        (
            Tests("tests/trust/test_hanging_rank.py"),
            Tests("tests/trace/test_survival.py", "hangs"),
            Tests("tests/trust/test_audit.py", "meets"),
        ),
    ),
    "8": Check(
        "Forked and spawned workers",
        "Files stay whole, no row is written twice, and no child process writes or ends the trace.",
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
        "Hosts 50 ms apart give the same figures, even if a clock is set back by an hour during "
        "the job. A clock that is 100 ppm fast changes figures by at most ten times that. No "
        "figure depends on the order of times on two hosts.",
        (Tests("tests/trust/test_clocks.py"),),
    ),
    "10": Check(
        "Impossible times",
        "profkit drops or repairs times that are zero, negative, 236 years long, or out of "
        "order. It counts every affected row. The ranking is that of the clean trace.",
        (
            Tests(
                "tests/importers/test_kineto.py tests/importers/test_base.py",
                "times_that_cannot_be",
            ),
        ),
    ),
    "11": Check(
        "Overhead",
        "The mean overhead is at most 0.15 ms per step, and at most 1 % of a long step. If the "
        "interval contains the limit, the next run may be over it. Every run measures its own "
        "overhead; [performance](performance.md) compares it with peers.",
        (Script("overhead", "--turns", 20, 6, "--processes 4 --keep-heap"),),
    ),
    "12": Check(
        "Long run",
        "Memory does not grow, no descriptor or thread is left, and every step is recorded.",
        (Script("soak", "--minutes", 60, 4),),
    ),
    "13": Check(
        "Size",
        "A run of 32 ranks opens in seconds and in bounded memory. [performance](performance.md) "
        "shows how time and memory grow.",
        (Script("open_trace"),),
    ),
    "14": Check(
        "Deterministic output",
        "Reports and comparisons of a trace are equal to the byte, for any hash seed, number "
        "of threads and order of files.",
        (Tests("tests/trust/test_determinism.py"),),
    ),
    "15": Check(
        "Old and new schemas",
        "profkit reads a stored run of each schema version with equal values. It refuses a newer "
        "major version and names it.",
        (
            Tests(
                "tests/trust/test_golden.py tests/trace/test_contract.py",
                "earlier or kept or newer or older",
            ),
        ),
    ),
    "16": Check(
        "Names that contain code",
        "Terminals, HTML, SVG, Markdown, spreadsheets and the terminal interface show such "
        "names and execute nothing.",
        (
            Tests(
                "tests/trust/test_hostile_names.py tests/report/test_shapes.py tests/tui",
                "no_terminal or formula or hostile or markdown_shows or steer or browser",
            ),
        ),
    ),
    "17": Check(
        "Secrets around a job",
        "Twenty variables, arguments and rows of another tool's file look like secrets. None of "
        "them appears in a file. Files are private to their owner.",
        (Tests("tests/trust/test_secrets.py tests/test_environment.py"),),
    ),
    "18": Check(
        "No network, no code, no file elsewhere",
        "Reading, showing, importing and exporting open no socket, construct no class from a "
        "pickle, start no process, and write only to the given place.",
        (Tests("tests/trust/test_audit.py", "nothing_but"),),
    ),
    "19": Check(
        "Objects, results, start-up",
        "DDP models do not change (copies, pickles, join, the job's own hooks). profkit records "
        "a job with any order of imports. A hint states only what was seen.",
        (Script("harmless"), Tests("tests/harmless")),
    ),
    "A": Check(
        "Check of the checks",
        "Without validation and checksums, check 3 must fail, and it does.",
        (
            Script("mutate_runs", "--count", 2_000, 200, "--without-validation", fails=True),
            Tests(
                "tests/importers/test_mutations.py tests/trust/test_damage.py",
                "planted or without_validation",
            ),
        ),
    ),
    "B": Check(
        "Unanswerable questions",
        "profkit reports every known unanswerable case as inconclusive or as an error, in both "
        "directions. Gates follow this verdict.",
        (Tests("tests/trust/test_unanswerable.py"),),
    ),
}


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
            "`--part 0.1` runs a tenth of each count. If only a part of a check was run, its result "
            "says how much."
        ),
        "",
        f"Measured on {machines}, while other work used the machine as well.",
        "",
        "| | check | promise | command | result | date |",
        "|---|---|---|---|---|---|",
        *(line for number, check in CHECKS.items() for line in _lines(number, check, results)),
        "",
        *_matrix(),
        "## Limits",
        "",
        (
            "A killed run has no checksums yet, so a flipped bit is found only if it breaks the "
            "file. A changed"
        ),
        (
            "digit in a JSON record is not noticed. profkit makes no statement about the order "
            "of times on two"
        ),
        "hosts, so no check covers it.",
        "",
        f"Versions: {versions}.",
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


def _key(step: Script | Tests, amount: int) -> str:
    return " ".join(step.words(amount))


def found_of(step: Script | Tests, results: Mapping[str, Result]) -> Result | None:
    """Return the result of the longest run of a command."""
    return max(
        (result for result in results.values() if _is_of(step, result)),
        key=lambda result: int(result["amount"]),
        default=None,
    )


def _is_of(step: Script | Tests, result: Result) -> bool:
    return bool(result["command"] == _key(step, result["amount"]))


def kept_results() -> dict[str, Result]:
    """Return earlier results of commands that still exist."""
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
    """Write the results, and the pages that quote them."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    figures.write()


if __name__ == "__main__":
    sys.exit(main())
