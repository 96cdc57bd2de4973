"""Change the source at random places, one at a time, and count the changes that tests find.

    python benchmarks/mutants.py --make-map     needs pytest-cov; half an hour
    python benchmarks/mutants.py [--count 300] [--seed 0] [--tiers default,all] [--write]

The map says which tests run which lines: `--make-map` runs all tests but the real jobs once. A
mutant lives in a copy of the tree. The tests of the default tier that run its line meet it, quick
ones first, up to `--budget-s`; if none does (a child process may), the modules that name its
module. With `--tiers default,all`, survivors also meet the tests of other tiers that run the line,
and those modules of jobs and of the night that name its module. `--write` writes
docs/results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import Any, NamedTuple

import results

TOP = Path(__file__).resolve().parents[1]
sys.path.append(str(TOP))
from tests.tiers import tier_of_test  # noqa: E402

SOURCES = ("profkit", "instrument", "collectors", "tui")
OTHERS_OF = {"Lt": "<=", "LtE": "<", "Gt": ">=", "GtE": ">", "Eq": "!=", "NotEq": "=="}
OTHERS_OF |= {"Is": "is not", "IsNot": "is", "In": "not in", "NotIn": "in"}
OTHERS_OF |= {"Add": "-", "Sub": "+", "Mult": "/", "Div": "*", "FloorDiv": "*", "Mod": "*"}
SKIPPED = ("annotation", "returns", "type_params", "decorator_list")
DEFAULT, OTHER_TIERS = "not (jobs or nightly)", "jobs or nightly"
GRACE_S = 60.0
IGNORED = shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "__pycache__", "traces.*")


class Mutant(NamedTuple):
    """A change of one file; `text` replaces the bytes from `begin` to `end`."""

    file: str
    line: int
    in_function: bool
    begin: int
    end: int
    text: str


def candidates(file: Path) -> Iterator[Mutant]:
    """Yield all possible changes of a file."""
    source, name = file.read_bytes(), file.relative_to(TOP).as_posix()
    lengths = map(len, source.splitlines(keepends=True))
    offsets = [0, *itertools.accumulate(lengths)]

    def visit(node: ast.AST, in_function: bool) -> Iterator[Mutant]:
        in_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for place, text in changes(node):
            begin = offsets[place.lineno - 1] + place.col_offset
            end = offsets[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
            yield Mutant(name, place.lineno, in_function, begin, end, text)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in SKIPPED:
                    yield from visit(child, in_function)

    yield from visit(ast.parse(source), False)


def changes(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """Yield nodes to replace and their new text."""
    words = ast.unparse
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = OTHERS_OF[type(node.ops[0]).__name__]
        yield node, f"(({words(node.left)}) {other} ({words(node.comparators[0])}))"
    elif isinstance(node, ast.BinOp) and type(node.op).__name__ in OTHERS_OF:
        other = OTHERS_OF[type(node.op).__name__]
        yield node, f"(({words(node.left)}) {other} ({words(node.right)}))"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, f"({word.join(f'({words(each)})' for each in node.values)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield from ((node, f"({node.value + by})") for by in (1, -1))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, f"({words(node.operand)})"
    elif isinstance(node, ast.Return) and node.value and words(node.value) != "None":
        yield node, "return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)) and words(node.test) != "TYPE_CHECKING":
        yield node.test, f"(not ({words(node.test)}))"


class Map:
    """Which tests run a line, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        coverage = importlib.import_module("coverage")  # only maps need it
        self._data = coverage.CoverageData(str(folder / ".coverage"))
        self._data.read()
        self._seconds: dict[str, float] = defaultdict(float)
        for part in folder.glob("*.json"):
            for test, took_s in json.loads(part.read_text()).items():
                self._seconds[test.partition("[")[0]] += took_s
        self._top = next(
            path.removesuffix("profkit/cli.py")
            for path in self._data.measured_files()
            if path.endswith("profkit/cli.py")
        )

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the test functions that run the line, quick ones first.

        A line outside of functions runs at the import, for all tests of the file.
        """
        by_line = self._data.contexts_by_lineno(self._top + mutant.file)
        contexts = by_line.get(mutant.line, [])
        if not mutant.in_function:
            contexts = list(itertools.chain.from_iterable(by_line.values()))
        found = {each.partition("|")[0].partition("[")[0] for each in contexts if each}
        return sorted(found, key=self.seconds)

    def seconds(self, test: str) -> float:
        """Return how long a test takes, or all tests of a module."""
        if "::" in test:
            return self._seconds[test]
        return sum(took for each, took in self._seconds.items() if each.startswith(test + "::"))

    def within(self, tests: list[str], budget_s: float) -> list[str]:
        spent_s = itertools.accumulate(map(self.seconds, tests))
        return tests[: max(1, sum(each <= budget_s for each in spent_s))]


def make_map(folder: Path) -> None:
    """Run all tests but the real jobs with `mutants_map.py`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "rc").write_text(
        f"[run]\nsource = {','.join(SOURCES)}\ndata_file = {folder}/.coverage\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "mutants_map",
        "-m",
        "not (jobs or alone)",
    ]
    command += ["--cov", f"--cov-config={folder}/rc", "--cov-context=test", "--cov-report="]
    paths = {"MUTANTS_MAP": str(folder), "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run(command, cwd=TOP, env={**os.environ, **paths}, check=False)


def naming(mutant: Mutant) -> list[str]:
    """Return the modules of tests in the folder of the same name, or that name the module."""
    module = PurePosixPath(mutant.file)
    folder = f"tests/{module.parts[module.parts[0] == 'profkit']}/"
    tests = sorted((TOP / "tests").rglob("test_*.py"))
    names = [test.relative_to(TOP).as_posix() for test in tests]
    return [name for name in names if folder in name or module.stem in (TOP / name).read_text()]


def is_by_default(test: str) -> bool:
    module, _, name = test.removeprefix("tests/").partition("::")
    return tier_of_test(PurePosixPath(module), name) is None


def run_tests(copy: Path, tests: Sequence[str], marks: str, limit_s: float) -> str:
    """Return how the tests ended on the tree of `copy`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
    ]
    paths = {"PYTHONPATH": str(copy), "PYTHONPYCACHEPREFIX": str(copy / "bytecode")}
    process = subprocess.Popen(
        [*command, "-m", marks, *tests], cwd=copy, env={**os.environ, **paths},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return "too late"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "survived" if code in (0, 5) else "found"  # 5: all of them are in other tiers


def judge(mutant: Mutant, copy: Path, reached: Map, args: Any) -> dict[str, Any]:
    """Return what became of a mutant."""
    path, original = copy / mutant.file, (TOP / mutant.file).read_bytes()
    path.write_bytes(original[: mutant.begin] + mutant.text.encode() + original[mutant.end :])
    os.utime(path, (random.randrange(10**6, 10**9),) * 2)  # its bytecode is never stale
    every, tier = reached.tests(mutant), "default"
    chosen = [test for test in every if is_by_default(test)] or naming(mutant)
    tests = reached.within(chosen, args.budget_s)
    limit_s = 5 * sum(map(reached.seconds, tests)) + GRACE_S
    state = run_tests(copy, tests, DEFAULT, limit_s) if tests else "survived"
    if state == "survived" and args.tiers != tier:
        tier, others = "all", [test for test in every if not is_by_default(test)]
        others = reached.within(others, args.budget_all_s) if others else []
        others += [name for name in naming(mutant) if not is_by_default(name)]
        state = run_tests(copy, others, OTHER_TIERS, args.budget_all_s) if others else state
    shutil.copy2(TOP / mutant.file, path)
    row = {"place": f"{mutant.file}:{mutant.line}", "tests": len(tests), "tier": tier}
    row |= {"before": original[mutant.begin : mutant.end].decode(), "after": mutant.text}
    print(f"{state}: {row}", flush=True)
    return {**row, "state": state}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--map", type=Path, default=TOP / "build/mutants")
    parser.add_argument("--make-map", action="store_true")
    parser.add_argument("--under", default="", help="only in files whose path begins so")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiers", default="default", choices=["default", "default,all"])
    parser.add_argument("--budget-s", type=float, default=60.0, help="of tests for a mutant")
    parser.add_argument("--budget-all-s", type=float, default=900.0, help="in the other tiers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.make_map:
        make_map(args.map)
        return
    reached = Map(args.map)
    files = sorted(file for name in SOURCES for file in (TOP / name).rglob("*.py"))
    every = [mutant for file in files for mutant in candidates(file)]
    every = [mutant for mutant in every if mutant.file.startswith(args.under)]
    chosen = random.Random(args.seed).sample(every, args.count)
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(args.workers) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(args.workers):
            shutil.copytree(TOP, Path(work, str(number)), symlinks=True, ignore=IGNORED)
            free.put(Path(work, str(number)))

        def work_on(mutant: Mutant) -> dict[str, Any]:
            copy = free.get()
            try:
                return judge(mutant, copy, reached, args)
            finally:
                free.put(copy)

        rows = list(pool.map(work_on, chosen))
    survivors = [row for row in rows if row["state"] == "survived"]
    found = {"seed": args.seed, "tiers": args.tiers, "candidates": len(every)}
    found |= {"states": Counter(row["state"] for row in rows), "survivors": survivors}
    print(json.dumps({**found, "survivors": len(survivors)}))
    if args.write:
        results.write("mutants", found)


if __name__ == "__main__":
    main()
