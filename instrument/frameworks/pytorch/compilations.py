"""The compiler of torch: it calls us at the start and the end of each compilation.

`torch.compile` imports `torch._dynamo`, which takes a second, so this module never does. What
failed and broke is read from the compiler's own lists, which it keeps in any case.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

from profkit import vocab
from profkit.instrument.compilations import Compilations, cut, explain_reason
from profkit.instrument.frameworks.base import Books
from profkit.instrument.frameworks.pytorch.compiled_code import find_compiled, name_compiled
from profkit.instrument.frameworks.pytorch.compiler import LEFT_ALONE, NEVER_COMPILED, NEVER_RESET
from profkit.instrument.guard import Patches, guarded

CALLBACKS = "torch._dynamo.callback"
_UTILS = "torch._dynamo.utils"

_CACHE_ENTRY = re.compile(r"^(\d+)/\d+: ")
"""The number of the function whose guard failed, and of its variant: torch 2.6 and later."""
_REMARK = re.compile(r"\s+# .*", re.DOTALL)
"""The line of code behind a guard, and hints."""

_LATER = {
    "LAZY_BACKWARD": "backward",
    "TRITON_AUTOTUNING": "autotuning of Triton kernels",
    "CUDAGRAPH_RECORDING": "recording of a CUDA graph",
}
"""The names of what follows the compilation of a function, by torch's names."""

_OWN_FILES = os.path.dirname(vocab.__file__) + os.sep

_LIMIT_LOGGER, _LIMIT_MESSAGE = "torch._dynamo.convert_frame", "torch._dynamo hit config."
"""Where, and with which words, torch warns that it compiles a function no more."""

_SKIPPED, _BREAK = "SkipFrame", "graph break"
"""The error with which torch leaves a frame alone, and what it says if that is a loss."""

_FIRST = "/0"
"""The end of the id of a function's first compilation; the number before is the function's."""


class Compiler:
    """Follows the compiler of this process by its callbacks."""

    def __init__(self, books: Books) -> None:
        self._log = Compilations(books.recorder, books.events, _follows(books))
        self._begun_ns = 0
        self._handled = 0
        """The identity of the error that the job handled when the compilation began.

        A reference would keep the frames of the job alive, and their tensors.
        """
        self._failed: dict[Any, int] = {}
        """How many failures of guards were seen of each function."""
        self._broken = 0
        """How many reasons for graph breaks were seen."""
        self.begin = guarded("compiler", self._begin, None)
        self.end = guarded("compiler", self._end, None)
        self.resync = guarded("compiler", self._resync, None)
        self.hear = guarded("compiler", self._hear, None)

    def _resync(self) -> None:
        """Begin to count anew from what the compiler's lists hold, because a reset clears them."""
        failures = getattr(sys.modules.get(_UTILS), "guard_failures", {})
        self._failed = {code: len(reasons) for code, reasons in list(failures.items())}
        self._broken = len(getattr(sys.modules.get(_UTILS), "graph_break_reasons", []))

    def _hear(self, record: logging.LogRecord) -> None:
        """Note a function that has too many variants: no callback and no list says so."""
        if not str(record.msg).startswith(_LIMIT_MESSAGE) or not isinstance(record.args, tuple):
            return
        _, limit, function, *_ = record.args
        code = find_compiled()
        name = name_compiled(code) if code else cut(str(function))
        self._log.add_limit(name, float(str(limit)))

    def _begin(self, *_: object) -> None:
        """Note the time: torch before 2.7 passes nothing, later versions what is compiled."""
        self._handled = id(sys.exc_info()[1])
        self._begun_ns = self._log.clock()

    def _end(self, *about: Any) -> None:
        begun_ns, self._begun_ns = self._begun_ns, 0
        if not begun_ns:
            return
        ended_ns = self._log.clock()
        number = str(about[0].compile_id).partition("/")[0] if about else ""
        name, guard = self._failed_guard(number)
        trigger = about[0].callback_trigger.name if about else ""
        if trigger in _LATER:
            name, guard = _LATER[trigger], None  # if a guard failed, it was that of the forward
        elif about and str(about[0].compile_id).endswith(_FIRST):
            # A function with too many variants fails its guards without being compiled.
            name, guard = "", None
        self._log.add(begun_ns, ended_ns, name, guard=guard)
        self._log.add_breaks(self._breaks())
        self._note_failure(sys.exc_info()[1])

    def _note_failure(self, error: BaseException | None) -> None:
        """Note a function that torch runs uncompiled, because an error ended its compilation.

        torch tells its callbacks nothing of it, but calls them while it handles the error.
        """
        code = find_compiled()
        if error is None or id(error) == self._handled or code is None:
            return
        reason = str(error)
        if type(error).__name__ == _SKIPPED and _BREAK not in reason:
            return  # there was nothing to compile
        self._log.add_failure(name_compiled(code), explain_reason(reason) or type(error).__name__)

    def _failed_guard(self, number: str) -> tuple[str, str | None]:
        """Return the function that is compiled again, and the guard that failed last.

        A function that was compiled several times fails a guard of each of its variants. Another
        one, which has too many of them, may have failed its guards since the last compilation.
        `number` is that of the function, which torch before 2.7 does not pass.
        """
        failures = getattr(sys.modules.get(_UTILS), "guard_failures", {})
        found: tuple[str, str | None] = ("", None)
        for code, reasons in list(failures.items()):
            seen = self._failed.get(code, 0)
            self._failed[code] = len(reasons)
            if len(reasons) > seen:
                reason = next(filter(None, reversed(reasons)), "").strip()
                entry = _CACHE_ENTRY.match(reason)
                if number and entry and entry[1] != number:
                    continue
                guard = _REMARK.sub("", _CACHE_ENTRY.sub("", reason))
                found = name_compiled(code), cut(guard) or "no reason known"
        return found

    def _breaks(self) -> Iterator[str]:
        """Yield the new graph breaks, with their places."""
        reasons = getattr(sys.modules.get(_UTILS), "graph_break_reasons", [])
        first = self._broken if self._broken <= len(reasons) else 0  # after a reset
        self._broken = len(reasons)
        for each in reasons[first:]:
            stack, reason = each.user_stack, str(each.reason)
            is_ours = bool(stack) and stack[-1].filename.startswith(_OWN_FILES)
            if is_ours or LEFT_ALONE in reason:
                continue  # a compiled function calls our hook, which is no fault of the job
            place = ""
            if stack:
                place = f" ({os.path.basename(stack[-1].filename)}:{stack[-1].lineno})"
            own = [known for known in (NEVER_COMPILED, NEVER_RESET) if known in reason]
            yield f"{own[0] if own else explain_reason(reason)}{place}"


def hook_compiler(patches: Patches, books: Books) -> None:
    """Register callbacks; `torch._dynamo.reset()` clears the list of them, so they return."""
    handler = sys.modules[CALLBACKS].callback_handler
    compiler = Compiler(books)

    def register() -> None:
        handler.register_start_callback(compiler.begin)
        handler.register_end_callback(compiler.end)

    def wrap_clear(clear: Any) -> Any:
        def clear_and_return() -> None:
            clear()
            compiler.resync()
            register()

        return clear_and_return

    def remove() -> None:
        for callbacks, own in (
            (handler.start_callbacks, compiler.begin),
            (handler.end_callbacks, compiler.end),
        ):
            if own in callbacks:
                callbacks.remove(own)

    def hear(record: logging.LogRecord) -> bool:
        compiler.hear(record)
        return True

    register()
    patches.on_undo(remove)
    logger = logging.getLogger(_LIMIT_LOGGER)
    logger.addFilter(hear)
    patches.on_undo(lambda: logger.removeFilter(hear))
    patches.replace(handler, "clear", wrap_clear)


def _follows(books: Books) -> Any:
    """Return a function that says if the calling thread trains, or may be the one that will.

    On a device, autograd's own thread compiles the backward while the loop's thread waits for it.
    """
    tracker = getattr(books, "tracker", None)
    if tracker is None:
        owner = threading.get_ident()
        return lambda: threading.get_ident() == owner
    return lambda: tracker.thread in (None, threading.get_ident())
