"""Note which module runs when and the line that calls it, in windows of kernels.

Torch's own global hooks are used, so outside of windows this costs nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

import torch

from profkit.clock import Clock, now_ns
from profkit.instrument.guard import guarded
from profkit.instrument.windows.module_calls import ModuleCall

_HOOKS: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_BETWEEN: Final = (os.path.dirname(torch.__file__) + os.sep, _HOOKS + os.sep)
"""Folders of torch and of our hooks: their lines call modules for the job."""

_WRAPPERS: Final = frozenset({"DistributedDataParallel", "DataParallel"})
_COMPILER: Final = "torch._dynamo.utils"


class _Open(threading.local):
    """The modules that a thread has entered: the time, the name, and the line of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str, int]] = []


class ModuleCalls:
    """Notes the calls of modules from `begin` until `end`."""

    def __init__(self, clock: Clock = now_ns) -> None:
        self._clock = clock
        self._open = _Open()
        self._names: dict[int, str] = {}
        self._roots: dict[int, Any] = {}
        self._handles: list[Any] = []
        self.calls: list[ModuleCall] = []

    def begin(self) -> None:
        """Hook all modules, unless the job has compiled code: torch would compile it again."""
        self.calls, self._names, self._roots, self._open = [], {}, {}, _Open()
        if is_compiled():
            return
        hooks = torch.nn.modules.module
        enter, leave = guarded("modules", self._enter, None), guarded("modules", self._leave, None)
        before = hooks.register_module_forward_pre_hook(enter)
        after = hooks.register_module_forward_hook(leave, always_call=True)
        self._handles = [before, after]

    def end(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._names, self._roots = {}, {}

    def _enter(self, module: Any, given: Any) -> None:
        opened = self._open.calls
        name = self._names.get(id(module))
        if name is None or not opened:
            name = self._name(module)
        file, line = _find_line(sys._getframe(1))  # noqa: SLF001  # there is no other way
        opened.append((self._clock(), name, file, line))

    def _leave(self, module: Any, given: Any, result: Any) -> None:
        opened = self._open.calls
        if opened:
            start, name, file, line = opened.pop()
            thread = threading.get_native_id()
            self.calls.append(ModuleCall(thread, start, self._clock(), name, file, line))

    def _name(self, module: Any) -> str:
        """Return a module's name; that of a whole model names all its modules."""
        if not self._open.calls and id(module) not in self._roots:
            self._roots[id(module)] = module  # kept, so that no other gets its id
            inner = module
            while type(inner).__name__ in _WRAPPERS:
                inner = inner.module
            kind = type(inner).__name__
            for name, each in inner.named_modules():
                self._names.setdefault(id(each), f"{kind}.{name}" if name else kind)
        return self._names.setdefault(id(module), type(module).__name__)


def _find_line(frame: FrameType | None) -> tuple[str, int]:
    """Return the innermost line outside of torch and of profkit's hooks."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_BETWEEN):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def is_compiled(modules: Mapping[str, Any] = sys.modules) -> bool:
    """Return true if torch's compiler has compiled code of this process."""
    compiler = modules.get(_COMPILER)
    return bool(compiler is not None and compiler.counters.get("frames"))
