"""What ARCHITECTURE.md says of folders, files, names and imports is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.test_packaging import TOP

PAGE = (TOP / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCES = ("profkit", "instrument", "collectors", "tui")
MAP = PAGE.split("```")[1]


@cache
def _modules() -> tuple[Path, ...]:
    """Return the modules of the product; links between its folders are not followed."""
    found: list[Path] = []
    for folder in SOURCES:
        for path in sorted((TOP / folder).rglob("*.py")):
            relative = path.relative_to(TOP)
            if not any(parent.is_symlink() for parent in (TOP / relative).parents):
                found.append(relative)
    return tuple(found)


def _listed() -> Iterator[str]:
    """Yield the folders of the map; an indented line continues the folder above it."""
    top = ""
    for line in MAP.strip().splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split()
        if not line.startswith(" "):
            (top,) = names
            yield top.rstrip("/")
        else:
            yield from (top + name.rstrip("/") for name in names)


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return the first names of the packages that a module imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((TOP / path).read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return frozenset(found)


def test_the_map_lists_every_folder_with_modules() -> None:
    folders = {str(path.parent) for path in _modules()} - {"profkit"}
    listed = list(_listed())
    assert sorted(folders) == sorted(listed)


def test_only_the_named_folders_import_a_framework() -> None:
    sentence = next(line for line in PAGE.splitlines() if line.startswith("- Only "))
    named = [f"profkit/{name}" for name in re.findall(r"`([\w/]+)/`", sentence)]
    named += [name.removeprefix("profkit/") for name in named if "/instrument/" in name]
    importing = set()
    for path in _modules():
        if _imported(path) & {"torch", "paddle", "torchvision"}:
            importing.add(str(path))
    outside = {path for path in importing if not path.startswith(tuple(named))}
    assert outside == set()
    used = [name for name in named if any(path.startswith(name) for path in importing)]
    assert len(used) == 4, "a folder that is named imports none"


def test_textual_is_imported_in_the_terminal_interface_only() -> None:
    importing = {path.parts[0] for path in _modules() if "textual" in _imported(path)}
    assert importing == {"tui"}


def test_the_files_that_it_names_exist() -> None:
    """A path is from the top; a name alone is a file of the folder that was named before it."""
    missing = []
    folder = Path()
    for name in re.findall(r"[\w./]+\.(?:py|c|toml|md)\b", PAGE):
        path = Path(name)
        if "/" in name:
            folder = path.parent
        known = (TOP / path, TOP / folder / path, TOP / "profkit" / path)
        if not any(each.is_file() for each in known):
            missing.append(name)
    assert missing == []


def test_the_names_that_it_says_are_in_a_file_are_there() -> None:
    pairs = re.findall(r"`([A-Za-z_]{4,})`\s(?:in|of|\()\s?`([\w/]+\.py)`", PAGE)
    assert len(pairs) >= 4
    lost = [pair for pair in pairs if pair[0] not in (TOP / pair[1]).read_text(encoding="utf-8")]
    assert lost == []


def test_the_groups_of_entry_points_exist() -> None:
    plugins = "".join((TOP / path).read_text(encoding="utf-8") for path in _modules())
    groups = re.findall(r"an entry point in `(profkit\.\w+)`", PAGE)
    assert len(groups) >= 6
    assert [group for group in groups if f'"{group}"' not in plugins] == []


def test_the_internals_name_modules_that_exist() -> None:
    ends = tuple(f"/{path.as_posix()}" for path in _modules())
    for page in sorted((TOP / "docs/internals").glob("*.md")):
        for found in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
            is_module = any(end.endswith(f"/{found}") for end in ends)
            assert is_module or (TOP / found).exists(), (page.name, found)
