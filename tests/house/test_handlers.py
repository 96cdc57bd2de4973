"""Handlers of every exception: each raises it again or says why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.measures import PACKAGES, ROOT

BROAD = frozenset({"Exception", "BaseException"})
LINTER_CODE = re.compile(r"#\s*noqa\S*(?: [A-Z]+\d+,?)*")


def _sources() -> Iterator[tuple[str, ast.Module, list[str]]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield str(path.relative_to(ROOT)), ast.parse(text), text.splitlines()


def _find_broad(tree: ast.Module) -> Iterator[ast.ExceptHandler | ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler | ast.Call) and _is_broad(node):
            yield node


def _is_broad(node: ast.ExceptHandler | ast.Call) -> bool:
    if isinstance(node, ast.ExceptHandler):
        names = {ast.unparse(each) for each in ast.walk(node.type)} if node.type else BROAD
        return bool(names & BROAD)
    if ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
        return bool({ast.unparse(each) for each in node.args} & BROAD)
    return False


def _raises_again(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and isinstance(node.body[-1], ast.Raise)


def test_a_handler_of_every_exception_raises_it_again_or_says_why_not() -> None:
    silent = []
    for path, tree, lines in _sources():
        for node in _find_broad(tree):
            if not _raises_again(node):
                line = lines[node.lineno - 1]
                if "#" not in LINTER_CODE.sub("", line):
                    silent.append(f"{path}:{node.lineno}: {line.strip()}")
    assert not silent, "\n".join(silent)


def test_no_error_is_a_frozen_dataclass() -> None:
    """`contextlib` sets `__traceback__` of what leaves a block, which a frozen class refuses."""
    frozen = []
    for path, tree, _ in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and re.search(r"(Error|Exception)$", node.name):
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                if "frozen=True" in decorators:
                    frozen.append(f"{path}:{node.lineno}: {node.name}")
    assert not frozen, "\n".join(frozen)


def test_the_check_finds_what_it_forbids() -> None:
    handlers = ast.parse(
        "try: a()\nexcept (Exception, SystemExit): pass\nexcept BaseException: raise"
    )
    assert list(map(_raises_again, _find_broad(handlers))) == [False, True]
    assert "#" not in LINTER_CODE.sub("", "except Exception:  # noqa: BLE001, S110")
