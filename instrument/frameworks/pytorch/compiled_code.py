"""Names what torch compiles, from the frames of its compiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, MethodType
from typing import Any

import torch

from profkit import vocab
from profkit.instrument.compilations import name_code

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(vocab.__file__) + os.sep

_WRAPPER, _WRAPPERS = "inner", "external_utils.py"
"""The function that torch compiles in place of a module of its own, such as `nn.Sequential`."""

_COMPILES, _COMPILERS = "_compile", "convert_frame.py"
"""The function of torch that compiles a code object, and its file."""


def name_compiled(code: CodeType) -> str:
    """Return the name and place of a function that is being compiled.

    All modules of torch share one wrapper, whose name says nothing. Such a module has the name of
    its class, and the line that calls it.
    """
    if code.co_name != _WRAPPER or os.path.basename(code.co_filename) != _WRAPPERS:
        return name_code(code)
    frame = _compiling_frame()
    if frame is None:
        return name_code(code)
    caller = next(_callers(frame), None)
    place = f" ({os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno})" if caller else ""
    return f"{_wrapped(frame)}{place}"


def find_compiled() -> CodeType | None:
    """Return the code that the calling thread is compiling."""
    frame = _compiling_frame()
    code = frame.f_locals.get("code") if frame else None
    return code if isinstance(code, CodeType) else None


def _compiling_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # the only way to the caller
    while frame is not None:
        code = frame.f_code
        if code.co_name == _COMPILES and os.path.basename(code.co_filename) == _COMPILERS:
            return frame
        frame = frame.f_back
    return None


def _callers(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames of the job that the compiler interrupts, the innermost first."""
    outer = frame.f_back
    while outer is not None:
        if not outer.f_code.co_filename.startswith((_TORCH, _OURS)):
            yield outer
        outer = outer.f_back


def _wrapped(frame: FrameType) -> str:
    """Return the class of the module, or the name of the function, that the wrapper calls."""
    cells: Any = frame.f_locals.get("closure") or ()
    for cell in cells:
        function = cell.cell_contents
        if isinstance(function, MethodType):
            function = function.__self__
        if isinstance(function, torch.nn.Module):
            return type(function).__name__
        return str(getattr(function, "__qualname__", "a module"))
    return "a module"
