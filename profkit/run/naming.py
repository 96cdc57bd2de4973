"""Names of jobs and of their runs' folders, from the command or the script."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

MAX_NAME_CHARS = 60
"""A job's name becomes a part of the run's folder."""

GENERIC_SCRIPTS = frozenset(
    {"train", "main", "run", "__main__", "finetune", "pretrain", "launch", "trainer", "train_net"}
)
"""Scripts that many projects have: the folder of the run names the project, too."""

GENERIC_FOLDERS = frozenset({"tools", "scripts", "src", "bin", "train", "training", "examples"})
"""Folders of such scripts that name no project either."""

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_CODE_OR_MODULE = ("-c", "-m")

NOTEBOOKS = "ipykernel_launcher"
"""The script of every notebook; Jupyter says in `JPY_SESSION_NAME` which one it is."""


def name_job(command: Sequence[str]) -> str:
    """Return the name that people call the job by: its script, its module, or its program."""
    script = _find_script(command)
    if script is not None:
        return clean(script.stem)
    for word, following in itertools.pairwise(command):
        if word == "-m":
            return clean(following)
    return clean(Path(command[0]).name)


def name_run(command: Sequence[str]) -> str:
    """Return the name of the run's folder, which tells jobs apart whose scripts have one name."""
    script = _find_script(command)
    return name_job(command) if script is None else name_script(script)


def name_script(script: Path) -> str:
    """Return a script's name, with that of its project if many projects have such a script."""
    if script.stem == NOTEBOOKS:
        notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
        return clean(notebook or f"{Path.cwd().name}-notebook")
    if script.stem not in GENERIC_SCRIPTS:
        return clean(script.stem)
    folders = [folder.name for folder in script.absolute().parents]
    for folder in folders:
        if folder not in GENERIC_FOLDERS and folder:
            return clean(f"{folder}-{script.stem}")
    return clean(script.stem)


def _find_script(command: Sequence[str]) -> Path | None:
    """Return the Python script of a command, or else its shell script."""
    for suffix in (".py", ".sh"):
        for word in command:
            if word.endswith(suffix):
                return Path(word)
    for place, word in enumerate(command):
        if _PYTHON.fullmatch(Path(word).name):
            return _script_of_python(command[place + 1 :])
    if "-m" in command:
        return None
    return next((Path(word) for word in command[1:] if _is_for_python(Path(word))), None)


def _script_of_python(words: Sequence[str]) -> Path | None:
    """Return the script among Python's words, whatever its suffix."""
    following = iter(words)
    for word in following:
        if word in _OPTIONS_WITH_VALUE:
            next(following, None)
        elif word == "-" or word.startswith(_CODE_OR_MODULE):
            return None
        elif not word.startswith("-"):
            return Path(word)
    return None


def _is_for_python(file: Path) -> bool:
    """Return true for a file whose first line names Python as its interpreter."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            first = opened.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def clean(name: str) -> str:
    """Return a name that can be a part of a folder's."""
    safe = [char if char.isalnum() or char in "-_." else "_" for char in name]
    return "".join(safe)[:MAX_NAME_CHARS] or "job"
