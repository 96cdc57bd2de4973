"""No modules import each other in a circle, not even for their types."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.house.test_packaging import TOP

LINKED = ("instrument", "collectors", "tui")
"""Folders of the top level that are packages of profkit."""


def _modules() -> dict[str, Path]:
    found = {}
    for name in ("profkit", *LINKED):
        for path in (TOP / name).rglob("*.py"):
            parts = path.relative_to(TOP).with_suffix("").parts
            if parts[0] != "profkit":
                parts = ("profkit", *parts)
            elif parts[1] in LINKED:  # a link to a folder of the top level
                continue
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports anywhere, also if only a type checker does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found & modules.keys()


def test_no_modules_import_each_other() -> None:
    modules = _modules()
    graph = {name: _imported(path, modules) for name, path in modules.items()}
    assert sum(map(len, graph.values())) > len(modules)
    TopologicalSorter(graph).prepare()  # raises an error that names a circle
