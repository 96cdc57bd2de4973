"""Score predictions: planted faults, settings, logs, and many ranks.

    python benchmarks/whatif.py [SECTION ...] [--data FOLDER] [--work FOLDER] [--write]

Sections are `planted`, `experiments`, `settings`, `logs` and `ranks`.
`--data` is the folder of public data: its `logs` has training logs. `--work` has the pairs of
benchmarks/faults for `planted`, and the runs of `experiments` and `settings`, which record what is
missing. `--write` replaces these sections of docs/whatif.md and keeps the rest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import whatif_cases
import whatif_experiments
import whatif_settings

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
DOCUMENT = ROOT / "docs" / "whatif.md"

SECTIONS = ("planted", "experiments", "settings", "logs", "ranks")


def write_section(name: str, text: str) -> None:
    """Replace a section of the page between its two marks."""
    page = DOCUMENT.read_text()
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    if begin not in page or end not in page:
        raise SystemExit(f"{DOCUMENT}: has no marks of the section {name}")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    DOCUMENT.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="+", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-whatif"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.sections:
        if name not in SECTIONS:
            raise SystemExit(f"no such section: {name}; there are {', '.join(SECTIONS)}")
        if name == "planted":
            text = whatif_cases.planted(arguments.work)
        elif name == "experiments":
            text = whatif_experiments.experiments(arguments.work)
        elif name == "settings":
            text = whatif_settings.settings(arguments.work)
        elif name == "logs":
            text = whatif_cases.logs(arguments.data / "logs")
        else:
            text = whatif_cases.ranks()
        if arguments.write:
            write_section(name, text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
