"""Report modules once a job has imported them. Imports nothing but what Python has loaded."""

from __future__ import annotations

import gc
import sys

from profkit.attached import MISSED, note

TYPE_CHECKING = False  # importing typing would cost every process of a job 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any


def watch(names: dict[str, str], report: Callable[[str], None]) -> Watcher:
    """Call `report` with the value of each named module, now or once it has been imported."""
    watcher = Watcher(names, report)
    watcher.catch_up()
    sys.meta_path.insert(0, watcher)
    return watcher


class Watcher:
    """A finder that finds what the finders after it find, and reports executed modules.

    Asking for a spec does not mean that the module is imported: transformers asks for torch's and
    drops it. So each spec that is returned has a loader that reports when it has executed.
    """

    def __init__(self, names: dict[str, str], report: Callable[[str], None]) -> None:
        self._waiting = dict(names)
        self._report = report

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the import system would find without us."""
        if not self._waiting:
            return None
        self.catch_up()
        if name not in self._waiting:
            return None
        finders = list(sys.meta_path)
        if self in finders:
            finders = finders[finders.index(self) + 1 :]
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                self._follow(name, spec.loader)
                return spec
        return None

    def catch_up(self) -> None:
        """Report modules that another finder has found in our place."""
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None and _is_executed(module):
                self._executed(name)

    def note_missed(self) -> None:
        """Note the modules that were imported without a report, for the launcher's hint."""
        for name in self._waiting:
            if name in sys.modules:
                note(MISSED, name)

    def _follow(self, name: str, loader: Any) -> None:
        """Report the module once this loader has executed it; the loader stays unchanged."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            _bind_zlib()
            execute(module)
            vars(loader).pop("exec_module", None)
            self._executed(name)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots; `catch_up` reports its module
            return

    def _executed(self, name: str) -> None:
        value = self._waiting.pop(name, None)
        if value is not None:
            self._report(value)


def _bind_zlib() -> None:
    """Load zlib before the framework: Paddle 2.6 exports the symbols of another version.

    A zlib that is loaded later crashes or hangs; importing pyarrow uses it.
    """
    try:
        import zlib  # noqa: F401
    except ImportError:  # this Python was built without it
        return


def _is_executed(module: ModuleType) -> bool:
    """Return true if the module's import has ended, and no thread runs the module's code.

    A lazy module is not touched, because that would load it. A spec that is used by hand does not
    say itself that its module is being executed.
    """
    if type(module).__name__ == "_LazyModule":
        return False
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        return False
    collects = gc.isenabled()
    gc.disable()  # a collection here could end the process (profkit/collectors/_thread_stacks.py)
    try:
        return not _is_run(vars(module))
    finally:
        if collects:
            gc.enable()


def _is_run(module: dict[str, Any]) -> bool:
    """Return true if a thread is in the code of the module with these globals."""
    for innermost in sys._current_frames().values():  # noqa: SLF001  # it has no public name
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_globals is module:
                return True
            frame = frame.f_back
    return False
