"""Train real programs bare and recorded, and check all figures against a probe.

python benchmarks/programs/table.py run [NAME ...]   run what is missing in --work
python benchmarks/programs/table.py show             show the table and the misses
python benchmarks/programs/table.py show --write     also write docs/results/programs.json
python benchmarks/programs/table.py list             list the programs

The environment with the packages (--env) is made first. `jobs` has a script for each program, which
uses its package as the package's own examples do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # results.py

import environment
import results
from compare import HEADINGS, Verdict, as_row, judge
from launch import run_pair
from registry import Program, named

from profkit.text import table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "show", "list"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--env", type=Path, default=Path("/tmp/profkit-programs/env"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-programs/runs"))
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    parser.add_argument("--write", action="store_true", help="write docs/results/programs.json")
    args = parser.parse_intermixed_args()
    chosen = named(args.names)
    if args.what == "list":
        for program in chosen:
            print(program.name, *program.command("python", "jobs"))
    elif args.what == "run":
        run(chosen, args)
    else:
        verdicts = judge_all(chosen, args.work)
        rows = [as_row(each) for each in verdicts if not each.skipped]
        print(table([list(HEADINGS), *([str(cell) for cell in row] for row in rows)]))
        for each in verdicts:
            for miss in each.misses or ((each.skipped,) if each.skipped else ()):
                print(f"{each.program.name}: {miss}")
        if args.write:
            named_rows = [dict(zip(HEADINGS, row, strict=True)) for row in rows]
            packages = environment.read(args.env)["versions"]
            results.write("programs", {"packages": packages, "rows": named_rows})


def run(programs: list[Program], args: argparse.Namespace) -> None:
    environment.make(args.env)
    for program in programs:
        folder = args.work / program.name
        if args.again:
            shutil.rmtree(folder, ignore_errors=True)
        if not (folder / "result.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            run_pair(program, environment.python(args.env), folder)
        verdict = judge(program, folder)
        print(
            f"{program.name}: {'; '.join(verdict.misses) or verdict.skipped or 'right'}", flush=True
        )


def judge_all(programs: list[Program], work: Path) -> list[Verdict]:
    return [judge(program, work / program.name) for program in programs]


if __name__ == "__main__":
    main()
