"""Measure how dense and how readable the source is; a lint step that names what is over a limit.

    python tests/house/measures.py [-v] [FOLDER ...]

Without folders it measures the four source packages, and checks tests and benchmarks as well. Every
rate is per 1,000 lines of the files. The exit code is 1 if a limit is broken.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("profkit", "instrument", "collectors", "tui")
LONGEST_LINE = 100
LONGEST_FIRST_LINE = 88
LONGEST_MODULE = 600
LONGEST_FUNCTION = 60

MOST = {
    "functions per 1,000": 62,
    "ternaries per 1,000": 12,
    "comprehensions per 1,000": 13,
    "private functions used once, %": 17,
    "vague docstring openings, %": 2,
    "docstring openings too long": 0,
    "nested conditionals": 0,
    "statements with two comprehensions": 0,
    "lines too long": 0,
    "functions too long": 0,
    "modules too long": 0,
    "broad handlers without a reason": 0,
    "frozen errors": 0,
}
FORBIDDEN = (
    "wide_openings",
    "nested_ternaries",
    "crowded_statements",
    "wide_lines",
    "long_functions",
    "broad_handlers",
    "frozen_errors",
)
"""The lists of places for which each entry breaks a limit."""

WIDE_TABLES = frozenset({"tests/tiers.py"})
"""Names of tests, and pages with figures to fill in, which have the lengths that they have."""

LINKED = ("instrument", "collectors", "tui")
"""Folders of the top level that are packages of profkit."""

BROAD = frozenset({"Exception", "BaseException"})
LINTER_CODE = re.compile(r"#\s*noqa\S*(?: [A-Z]+\d+,?)*")

VAGUE_OPENING = re.compile(
    r"(what|whether|how|of|by|with|where|which|that|who|when)\b", re.IGNORECASE
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Module:
    """The counts of one file, and the places that a limit forbids."""

    path: Path
    lines: int = 0
    code: int = 0
    functions: int = 0
    ternaries: int = 0
    comprehensions: int = 0
    docstrings: int = 0
    vague_openings: list[str] = field(default_factory=list)
    nested_ternaries: list[str] = field(default_factory=list)
    crowded_statements: list[str] = field(default_factory=list)
    wide_lines: list[str] = field(default_factory=list)
    wide_openings: list[str] = field(default_factory=list)
    long_functions: list[str] = field(default_factory=list)
    broad_handlers: list[str] = field(default_factory=list)
    frozen_errors: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def place(self, line: int) -> str:
        return f"{self.path}:{line}"


def measure_file(path: Path) -> Module:
    """Read one file and count."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    module = Module(path)
    lines = text.splitlines()
    module.lines = len(lines)
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            module.wide_lines.append(module.place(number))
    module.code = _count_code(text, tree)
    _count_names(tree, module)
    for node in ast.walk(tree):
        _count_node(node, module)
        _check_errors(node, lines, module)
    return module


def _count_code(text: str, tree: ast.Module) -> int:
    """Return the number of lines that hold code."""
    occupied: set[int] = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            occupied.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            occupied.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(occupied)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _count_names(tree: ast.Module, module: Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            module.names[node.id] += 1
        elif isinstance(node, ast.Attribute):
            module.names[node.attr] += 1
        elif isinstance(node, ast.alias):
            module.names[node.name] += 1


def _count_node(node: ast.AST, module: Module) -> None:
    if isinstance(node, FUNCTIONS):
        _count_function(node, module)
    if isinstance(node, ast.IfExp):
        module.ternaries += 1
        inner = [*ast.walk(node.test), *ast.walk(node.body), *ast.walk(node.orelse)]
        if any(isinstance(each, ast.IfExp) for each in inner):
            module.nested_ternaries.append(module.place(node.lineno))
    if isinstance(node, COMPREHENSIONS):
        module.comprehensions += 1
    if isinstance(node, ast.stmt) and _count_comprehensions(node) > 1:
        module.crowded_statements.append(module.place(node.lineno))
    if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        _count_docstring(node, module)


def _count_function(node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> None:
    module.functions += 1
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > LONGEST_FUNCTION:
        module.long_functions.append(f"{module.place(node.lineno)} {node.name} ({length} lines)")
    if node.name.startswith("_") and not node.name.startswith("__"):
        module.private.append(node.name)


def _count_comprehensions(statement: ast.stmt) -> int:
    """Return the comprehensions in a statement, without those of statements inside it."""
    count = 0
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        count += isinstance(node, COMPREHENSIONS)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                waiting.append(child)
    return count


def _count_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
    module: Module,
) -> None:
    text = ast.get_docstring(node)
    if not text:
        return
    module.docstrings += 1
    first = text.splitlines()[0]
    place = module.place(getattr(node, "lineno", 1))
    if len(first) > LONGEST_FIRST_LINE:
        module.wide_openings.append(place)
    if VAGUE_OPENING.match(first):
        module.vague_openings.append(f"{place} {first[:50]}")


def _check_errors(node: ast.AST, lines: Sequence[str], module: Module) -> None:
    """Note a handler of every exception that neither raises it again nor says why not.

    `contextlib` sets `__traceback__` of what leaves a block, which a frozen dataclass refuses.
    """
    if _is_broad(node):
        line = lines[node.lineno - 1]
        if "#" not in LINTER_CODE.sub("", line):
            module.broad_handlers.append(f"{module.place(node.lineno)} {line.strip()}")
    if isinstance(node, ast.ClassDef) and re.search(r"(Error|Exception)$", node.name):
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if "frozen=True" in decorators:
            module.frozen_errors.append(module.place(node.lineno))


def _is_broad(node: ast.AST) -> TypeGuard[ast.ExceptHandler | ast.Call]:
    if isinstance(node, ast.ExceptHandler):
        if isinstance(node.body[-1], ast.Raise):
            return False
        names = {ast.unparse(each) for each in ast.walk(node.type)} if node.type else BROAD
        return bool(names & BROAD)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
        return bool({ast.unparse(each) for each in node.args} & BROAD)
    return False


def measure(folders: Sequence[Path]) -> list[Module]:
    return [measure_file(path) for path in _files(folders)]


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield each file once: `profkit/tui` and its siblings are links to folders next to it."""
    seen: set[Path] = set()
    for folder in folders:
        found = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
        for path in found:
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                yield path


def used_once(modules: Sequence[Module]) -> list[str]:
    """Return the private functions that their own module uses exactly once."""
    found = []
    for module in modules:
        found += [f"{module.path} {name}" for name in module.private if module.names[name] == 1]
    return found


def summarise(modules: Sequence[Module]) -> dict[str, float]:
    """Return the measures of all files together."""
    lines = sum(module.lines for module in modules)
    functions = sum(module.functions for module in modules)
    docstrings = sum(module.docstrings for module in modules)

    def per_thousand(name: str) -> float:
        total: int = sum(getattr(module, name) for module in modules)
        return round(1000 * total / max(1, lines), 1)

    def count(name: str) -> int:
        return sum(len(getattr(module, name)) for module in modules)

    return {
        "files": len(modules),
        "lines": lines,
        "code lines": sum(module.code for module in modules),
        "functions per 1,000": per_thousand("functions"),
        "ternaries per 1,000": per_thousand("ternaries"),
        "comprehensions per 1,000": per_thousand("comprehensions"),
        "private functions used once, %": round(
            100 * len(used_once(modules)) / max(1, functions), 1
        ),
        "vague docstring openings, %": round(100 * count("vague_openings") / max(1, docstrings), 1),
        "docstring openings too long": count("wide_openings"),
        "nested conditionals": count("nested_ternaries"),
        "statements with two comprehensions": count("crowded_statements"),
        "lines too long": count("wide_lines"),
        "functions too long": count("long_functions"),
        "modules too long": sum(module.lines > LONGEST_MODULE for module in modules),
        "broad handlers without a reason": count("broad_handlers"),
        "frozen errors": count("frozen_errors"),
        "longest module": max(module.lines for module in modules),
    }


def find_circle(root: Path = ROOT) -> list[str]:
    """Return modules that import each other in a circle, be it only for a type checker."""
    modules = _source_modules(root)
    graph = {name: _imported(path, modules) for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def _source_modules(root: Path) -> dict[str, Path]:
    found = {}
    for name in ("profkit", *LINKED):
        for path in (root / name).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[0] != "profkit":
                parts = ("profkit", *parts)
            elif parts[1] in LINKED:  # a link to a folder of the top level
                continue
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found & modules.keys()


def broken(modules: Sequence[Module]) -> list[str]:
    """Return a line for each limit of the source that these modules break."""
    found = summarise(modules)
    return [
        f"{name}: {found[name]:g}, at most {most}"
        for name, most in MOST.items()
        if found[name] > most
    ]


def main(words: Sequence[str]) -> int:
    named = [Path(word) for word in words if word != "-v"]
    modules = measure(named or [ROOT / name for name in PACKAGES])
    for name, value in summarise(modules).items():
        print(f"{value:>10,}  {name}")
    over = broken(modules)
    _print_places(modules, FORBIDDEN)
    if "-v" in words:
        _print_places(modules, ("vague_openings",))
        for place in used_once(modules):
            print(f"used once: {place}")
    if not named:
        circle = find_circle()
        over += [f"a circle of imports: {' -> '.join(circle)}"] * bool(circle)
        over += [f"line too long: {place}" for place in _wide_lines(ROOT / "tests")]
        over += [f"line too long: {place}" for place in _wide_lines(ROOT / "benchmarks")]
    print(*over, sep="\n")
    return int(bool(over))


def _wide_lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(ROOT).as_posix() in WIDE_TABLES:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > LONGEST_LINE:
                yield f"{path}:{number}"


def _print_places(modules: Sequence[Module], kinds: Sequence[str]) -> None:
    """Print each place that breaks one of these limits."""
    for kind in kinds:
        for module in modules:
            for place in getattr(module, kind):
                print(f"{kind}: {place}")
    for module in modules:
        if module.lines > LONGEST_MODULE:
            print(f"long module: {module.path} ({module.lines} lines)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
