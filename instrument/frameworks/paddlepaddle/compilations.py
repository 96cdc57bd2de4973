"""Compilations by `paddle.jit.to_static`: programs, or translated bytecode.

CINN compiles a program in C++ when it first runs, where Python sees nothing; that time stays in
the phase that runs it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from profkit.instrument.compilations import Compilations, name_code
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches, guarded

_PROGRAMS = "paddle.jit.dy2static.program_translator"
_BYTECODE = "paddle.jit.sot.opcode_translator.executor.executor_cache"
_OTHER_INPUTS = "inputs of another shape, type or value"


class _Times:
    """Times the calls of Paddle that compile; one inside another is part of it."""

    def __init__(self, books: Books) -> None:
        thread = threading.get_ident()
        tracker = getattr(books, "tracker", None)

        def follows() -> bool:
            followed = tracker.thread if tracker is not None else thread
            return followed in (None, threading.get_ident())

        self._log = Compilations(books.recorder, books.samples, follows)
        self._compiled: set[CodeType] = set()
        self._inside = False
        self._add = guarded("compiler", self._note, None)

    def wrap(self, find_code: Callable[[Any], CodeType]) -> Callable[[Any], Any]:
        """Return what wraps a function whose first argument leads to the compiled code."""
        find = guarded("compiler", find_code, None)

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if self._inside:
                    return original(*args, **kwargs)
                self._inside, begun_ns = True, self._log.clock()
                try:
                    return original(*args, **kwargs)
                finally:
                    self._inside = False
                    what = next(iter((*args, *kwargs.values())), None)
                    self._add(begun_ns, self._log.clock(), find(what))

            return call

        return wrap

    def _note(self, begun_ns: int, ended_ns: int, code: CodeType | None) -> None:
        name, guard = "", None
        if code is not None:
            name = name_code(code)
            guard = _OTHER_INPUTS if code in self._compiled else None
            self._compiled.add(code)
        self._log.add(begun_ns, ended_ns, name, guard=guard)


def _hook_programs(patches: Patches, books: Books) -> None:
    owner = sys.modules[_PROGRAMS].ConcreteProgram
    times = _Times(books)
    for name in ("from_func_spec", "pir_from_func_spec"):
        if hasattr(owner, name):  # the latter since Paddle 3.0
            patches.replace(owner, name, times.wrap(lambda spec: spec.dygraph_function.__code__))


def _hook_bytecode(patches: Patches, books: Books) -> None:
    times = _Times(books)
    patches.replace(
        sys.modules[_BYTECODE], "start_translate", times.wrap(lambda frame: frame.f_code)
    )


COMPILERS = {_PROGRAMS: _hook_programs, _BYTECODE: _hook_bytecode}
"""The hooks for `Framework.later`."""
