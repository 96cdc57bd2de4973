"""Train real programs bare and recorded, and check all figures against a probe.

python benchmarks/programs/table.py run [NAME ...]   run what is missing in --work
python benchmarks/programs/table.py show             show the table and the misses
python benchmarks/programs/table.py write            also write docs/programs.md
python benchmarks/programs/table.py list             list the programs

`make programs` makes an environment with the packages (--env), runs all, and writes the page.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import environment
from compare import Verdict, judge
from document import as_document, as_text
from launch import run_pair
from registry import Program, named

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "programs.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "show", "write", "list"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--env", type=Path, default=Path("/tmp/profkit-programs/env"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-programs/runs"))
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    args = parser.parse_intermixed_args()
    chosen = named(args.names)
    if args.what == "list":
        for program in chosen:
            print(f"{program.name:24} {program.about}")
    elif args.what == "run":
        run(chosen, args)
    else:
        verdicts = judge_all(chosen, args.work)
        print(as_text(verdicts))
        if args.what == "write":
            DOCUMENT.write_text(as_document(verdicts, environment.read(args.env)))


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
