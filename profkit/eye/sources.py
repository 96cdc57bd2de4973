"""Hashes of the functions in the job's own files, by which two runs tell what was edited.

The text of a file does not get into the run. A file that has changed since the job began is left
out: nobody knows which text of it the job runs.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import textwrap
import time
from pathlib import Path

from profkit.clock import wall_ns
from profkit.eye.announcing import FUNCTIONS
from profkit.eye.reader import Stack
from profkit.eye.targets import Said
from profkit.plain_file import open_plain
from profkit.trace.jsonfile import replace_json
from profkit.vocab import OWN_CODE

LARGEST_FILE = 262_144
MOST_FILES = 2_000
MODULE, HASH_CHARS = "<module>", 12
"""What Python calls the code that is in no function, and what is kept of a hash."""

UNREADABLE = OSError, ValueError, SyntaxError, RecursionError, MemoryError
"""What a file raises that cannot be opened or parsed; it is left out."""


class Sources:
    """The functions of all files of the job's own code that were seen in a stack."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_ns = wall_ns()
        self._seen: set[str] = set()
        self._files: dict[str, dict[str, str]] = {}
        self._is_new = False

    def look(self, places: Stack, said: Said) -> None:
        """Read the files of these frames that are the job's own, each once."""
        for code, _ in places:
            file = code.co_filename
            if file not in self._seen and len(self._seen) < MOST_FILES:
                self._seen.add(file)
                if said.origins.of(file) == OWN_CODE:
                    with contextlib.suppress(*UNREADABLE):
                        self._read(said.origins.shown(file), said)

    def _read(self, shown: str, said: Said) -> None:
        self._began_ns = min(self._began_ns, began_ns(said.started))
        # In a container, the job has other files than the eye.
        with open_plain(f"/proc/{said.pid}/root{os.path.expanduser(shown)}") as file:
            content = file.read(LARGEST_FILE + 1)
            is_same = os.fstat(file.fileno()).st_ctime_ns < self._began_ns
        if is_same and len(content) <= LARGEST_FILE:
            self._files[shown] = hash_functions(content)
            self._is_new = True

    def flush(self) -> None:
        if self._is_new:
            self._is_new = False
            replace_json(self._path, {FUNCTIONS: self._files})


def began_ns(started_ticks: int) -> int:
    """Return the time of day at which a process began."""
    since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return wall_ns() - since_boot_ns + started_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def hash_functions(content: bytes) -> dict[str, str]:
    """Return a hash of the text of each function and class, by its name in the file.

    A line counts for the innermost one. Neither the place in the file nor empty lines matter. What
    is inside of a function is named after it, as what is in a class.
    """
    lines = content.splitlines()  # of bytes: where Python's own lines end
    owner = [MODULE] * len(lines)
    _name_lines(ast.parse(content), "", owner)
    texts: dict[str, list[bytes]] = {}
    for name, line in zip(owner, lines, strict=True):
        if line.strip():
            texts.setdefault(name, []).append(line.rstrip())
    found = {}
    for name, own in texts.items():
        text = textwrap.dedent(b"\n".join(own).decode("utf-8", "backslashreplace"))
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]
    return found


def _name_lines(node: ast.AST, around: str, owner: list[str]) -> None:
    """Write the name of each definition to its lines, and then those of the ones inside it."""
    for child in ast.iter_child_nodes(node):
        inside = around
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = around + child.name
            inside = f"{name}."
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            last = child.end_lineno or first
            owner[first - 1 : last] = [name] * (last - first + 1)
        _name_lines(child, inside, owner)
