"""Names that are code in some format: all of profkit's output escapes them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from profkit.cli import main
from tests.documents import drawings
from tests.hostile import INJECTIONS, UNSAFE, hostile_run
from tests.tui.driving import shown

PRINT_ALL = """
import sys
from profkit.cli import main
run, base = sys.argv[1:]
for words in (
    ["report", run], ["verify", run], ["explain", base, run], ["explain", run, run, base],
    ["report", run, "--json"], ["report", run, "--format", "markdown"],
    ["report", run, "--format", "html"],
    ["report", run, "-w", run + ".html"], ["export", run, "--stacks", "-w", run + ".stacks"],
    ["export", run, "--format", "csv", "--steps", "all", "-w", run + ".csv"],
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
                "-w",
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


MARKUP = re.compile(
    r"<(?!/?(?:!doctype|html|head|meta|title|style|body|main|h1|h2|p|div|dl|dt|dd|b"
    r"|span|section|details|summary|table|thead|tbody|tr|th|td|svg|rect|text|line|footer|circle"
    r"|polyline|path|g)\b)[a-z/!]",
    re.IGNORECASE,
)
"""An element that no page of profkit has."""


def test_names_of_code_are_safe_in_pages_and_stacks(hostile: Path, tmp_path: Path) -> None:
    page, folder = tmp_path / "page.html", tmp_path / "stacks"
    assert main(["report", str(hostile), "-w", str(page)]) == 0
    assert main(["export", str(hostile), "--stacks", "-w", str(folder)]) == 0
    texts = {path.name: path.read_text() for path in (page, *folder.iterdir())}
    assert "flame-own" in texts["page.html"]
    assert "In the loader&#x27;s workers" in texts["page.html"]
    for name, text in texts.items():
        assert not UNSAFE.search(text), name
    for name in ("page.html", "flame.html"):
        assert not MARKUP.findall(texts[name]), name
        for drawing in drawings(texts[name]):
            assert ET.fromstring(drawing) is not None
    lines = texts["collapsed.txt"].splitlines()
    assert len(lines) > len(INJECTIONS)
    assert all(re.fullmatch(r"rank \d.* \d+", line) for line in lines)
    assert not any(line.endswith(" 999999999") for line in lines)
    content = json.loads(texts["speedscope.json"])
    assert {profile["name"] for profile in content["profiles"]} == {
        "rank 0",
        "rank 1",
        "rank 0, loader worker 0",
        "rank 1, loader worker 0",
    }


def test_names_of_code_are_safe_on_a_screen(hostile: Path) -> None:
    found = shown(hostile, screen="code", size=(200, 50))
    assert "training thread" in found
    assert not UNSAFE.search(found)
