"""Compilations by `paddle.jit.to_static`: programs, or translated bytecode.

CINN compiles a program in C++ when it first runs, where Python sees nothing; that time stays in
the phase that runs it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

from profkit.instrument.compilations import Compilations, name_code
from profkit.instrument.frameworks.base import Books
from profkit.instrument.guard import Patches, guarded

_PROGRAMS = "paddle.jit.dy2static.program_translator"
_BYTECODE = "paddle.jit.sot.opcode_translator.executor.executor_cache"
_OTHER_INPUTS = "inputs of another shape, type or value"
_WRAPPED_AGAIN = "to_static was applied to it again"
_UNNAMED = "a guard that Paddle does not name"


class _Found(NamedTuple):
    """A function that is compiled, which has a program for each instance and mode."""

    code: CodeType
    variant: tuple[Any, ...]
    spec: Any = None
    """What Paddle keeps the programs of, by their inputs; null for bytecode."""


class _Compiling(threading.local):
    """Says if the calling thread compiles: translated bytecode builds a program as well."""

    now = False


_COMPILING = _Compiling()


class _Times:
    """Times the calls of Paddle that compile; one inside another is part of it."""

    def __init__(self, books: Books) -> None:
        thread = threading.get_ident()
        tracker = getattr(books, "tracker", None)

        def follows() -> bool:
            followed = tracker.thread if tracker is not None else thread
            return followed in (None, threading.get_ident())

        self._log = Compilations(books.recorder, books.events, follows)
        self._compiled: dict[tuple[CodeType, tuple[Any, ...]], Callable[[], Any]] = {}
        """What was compiled, and a weak reference to its latest specification."""
        self._add = guarded("compiler", self._note, None)

    def wrap(self, find_compiled: Callable[..., _Found]) -> Callable[[Any], Any]:
        """Return what wraps a function whose arguments lead to what it compiles."""
        find = guarded("compiler", find_compiled, None)

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if _COMPILING.now:
                    return original(*args, **kwargs)
                _COMPILING.now, begun_ns = True, self._log.clock()
                try:
                    return original(*args, **kwargs)
                finally:
                    _COMPILING.now = False
                    self._add(begun_ns, self._log.clock(), find(*args, **kwargs))

            return call

        return wrap

    def _note(self, begun_ns: int, ended_ns: int, found: _Found | None) -> None:
        name, guard = "", None
        if found is not None:
            name, key = name_code(found.code), (found.code, found.variant)
            if key in self._compiled:
                guard = _reason(found, self._compiled[key]())
            self._compiled[key] = lambda: None
            if found.spec is not None:
                self._compiled[key] = weakref.ref(found.spec)
        self._log.add(begun_ns, ended_ns, name, guard=guard)


def _reason(found: _Found, last_spec: Any) -> str | None:
    """Return why a variant is compiled again; null if it is another one after all."""
    if found.spec is None:
        return _UNNAMED
    if found.spec is last_spec:
        return _OTHER_INPUTS
    home = os.path.dirname(sys.modules["paddle"].__file__ or "")
    if found.code.co_filename.startswith(home):  # a program of bytecode that was translated
        return None
    return _WRAPPED_AGAIN


def _find_program(
    func_spec: Any,
    input_spec: Any = None,  # as Paddle names them
    input_kwargs_spec: Any = None,
    class_instance: Any = None,
    **options: Any,
) -> _Found:
    """Return the function and what else Paddle's key of a program holds, except for inputs."""
    variant = id(class_instance), options.get("is_train"), options.get("with_hook")
    return _Found(func_spec.dygraph_function.__code__, variant, func_spec)


def _find_frame(frame: Any, **_options: Any) -> _Found:
    """Return the code of a frame, and the layer that it is a method of, if it is one."""
    code: CodeType = frame.f_code
    owner = None
    if code.co_argcount:
        owner = frame.f_locals.get(code.co_varnames[0])
    training = getattr(owner, "__dict__", {}).get("training")  # runs no code of the owner
    if isinstance(training, bool):
        return _Found(code, (id(owner), training))
    return _Found(code, ())


def _hook_programs(patches: Patches, books: Books) -> None:
    owner = sys.modules[_PROGRAMS].ConcreteProgram
    times = _Times(books)
    for name in ("from_func_spec", "pir_from_func_spec"):
        if hasattr(owner, name):  # the latter since Paddle 3.0
            patches.replace(owner, name, times.wrap(_find_program))


def _hook_bytecode(patches: Patches, books: Books) -> None:
    times = _Times(books)
    patches.replace(sys.modules[_BYTECODE], "start_translate", times.wrap(_find_frame))


COMPILERS = {_PROGRAMS: _hook_programs, _BYTECODE: _hook_bytecode}
"""The hooks for `Framework.later`."""
