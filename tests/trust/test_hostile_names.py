"""Names that are code in some format: all of profkit's output escapes them."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.cli import main
from tests.hostile import UNSAFE, hostile_run

PRINT_ALL = """
import sys
from profkit.cli import main
run, base = sys.argv[1:]
for words in (
    ["report", run], ["verify", run], ["explain", base, run], ["explain", run, run, base],
    ["report", run, "--json"], ["report", run, "--format", "markdown"],
    ["report", run, "--format", "html"],
    ["export", run, "--format", "csv", "--steps", "all", "-o", run + ".csv"],
    ["report", run + "\\x1b[31m"], ["\\x1b[2J"],
    ["explain", run, run, "--gate", "\\x1b[31m"], ["explain", run, run, "--baseline", "\\x1b[31m"],
):
    main(words)
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("hostile") / "run")


def _seen_on_a_terminal(command: list[str]) -> str:
    """Return the text that a terminal receives from both streams until the command ends."""
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        seen = b"".join(_read_until_closed(ours))
        child.wait(300)
    os.close(ours)
    return seen.decode()


def _read_until_closed(terminal: int) -> list[bytes]:
    pieces = []
    while True:
        try:
            pieces.append(os.read(terminal, 65_536))
        except OSError:  # the other side is closed
            return pieces


def test_no_terminal_is_steered(hostile: Path, tmp_path: Path) -> None:
    seen = _seen_on_a_terminal([sys.executable, "-c", PRINT_ALL, str(hostile), str(hostile)])
    assert "Traceback" not in seen
    assert len(seen) > 20_000
    assert not UNSAFE.search(seen.replace("\r\n", "\n"))


def test_no_cell_of_a_spreadsheet_is_a_formula(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "export",
                str(hostile),
                "--format",
                "csv",
                "--steps",
                "all",
                "-o",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    cells = [
        cell
        for path in (tmp_path / "out").iterdir()
        for row in csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))
        for cell in row
    ]
    texts = [cell for cell in cells if not cell.lstrip("-").replace(".", "").isdigit()]
    assert len(texts) > 300
    assert not [
        cell
        for cell in texts
        if cell.startswith(("=", "+", "@", "-", "\t", "\r")) or UNSAFE.search(cell)
    ]
