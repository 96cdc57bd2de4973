"""Orders in which a program can import torch before it trains; each is one process."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Spec = importlib.machinery.ModuleSpec
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def _train() -> None:
    from order_train import train  # type: ignore[import-not-found]  # it lies beside this one

    train()


def _spec_of(name: str) -> tuple[Spec, importlib.abc.Loader]:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    return spec, spec.loader


def _fresh() -> None:
    assert "torch" not in sys.modules


@case
def plain() -> None:
    """The order with which the others are compared."""
    _fresh()
    _train()


@case
def find_spec_first() -> None:
    """As `is_torch_available` of many libraries."""
    assert importlib.util.find_spec("torch") is not None
    _fresh()
    _train()


@case
def find_spec_twice() -> None:
    first, _ = _spec_of("torch")
    second, _ = _spec_of("torch")
    assert first.origin == second.origin
    _fresh()
    _train()


@case
def find_spec_of_an_inner_module() -> None:
    """The package is imported by the search for what is inside."""
    assert importlib.util.find_spec("torch.nn") is not None
    assert "torch" in sys.modules
    _train()


@case
def find_spec_by_each_finder() -> None:
    """As `pkgutil` and freezers search: each finder is asked by hand."""
    for finder in list(sys.meta_path):
        finder.find_spec("torch", None)
    _fresh()
    _train()


@case
def spec_by_hand() -> None:
    """The recipe of the documentation of importlib, with the spec that was handed out."""
    spec, loader = _spec_of("torch")
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch"] = module
    loader.exec_module(module)
    _train()


@case
def path_finder_by_hand() -> None:
    """No finder but the standard one is asked, so nobody else can follow the spec."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch"] = module
    spec.loader.exec_module(module)
    _train()


@case
def thread_imports() -> None:
    """A thread imports while the main thread waits."""
    thread = threading.Thread(target=importlib.import_module, args=("torch",))
    thread.start()
    thread.join()
    assert "torch" in sys.modules
    _train()


@case
def two_threads_import() -> None:
    """Two threads import at once, and the main thread joins them late."""
    together = threading.Barrier(3)
    seen: list[ModuleType] = []

    def bring(name: str) -> None:
        together.wait()
        importlib.import_module(name)
        seen.append(sys.modules["torch"])

    threads = [threading.Thread(target=bring, args=(name,)) for name in ("torch", "torch")]
    for thread in threads:
        thread.start()
    together.wait()
    importlib.util.find_spec("torch")
    for thread in threads:
        thread.join()
    assert len(seen) == 2
    assert seen[0] is seen[1]
    _train()


@case
def thread_imports_and_trains() -> None:
    """All is done in a thread; the main thread sees torch only at the end."""
    thread = threading.Thread(target=_train)
    thread.start()
    thread.join()


@case
def lazy_loader() -> None:
    """The recipe for lazy imports of the documentation of importlib."""
    spec, inner = _spec_of("torch")
    loader = importlib.util.LazyLoader(inner)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch"] = module
    loader.exec_module(module)
    assert "torch.nn" not in sys.modules
    assert module.nn is sys.modules["torch.nn"]
    _train()


@case
def lazy_attribute() -> None:
    """A module whose `__getattr__` imports torch when it is asked for it."""
    lazy = ModuleType("lazy")

    def bring(name: str) -> ModuleType:
        if name != "torch":
            raise AttributeError(name)
        module = importlib.import_module(name)
        setattr(lazy, name, module)
        return module

    lazy.__getattr__ = bring  # type: ignore[method-assign]  # PEP 562
    sys.modules["lazy"] = lazy
    _fresh()
    from lazy import torch  # type: ignore[import-not-found]

    assert torch is sys.modules["torch"]
    _train()


class _FailsOnce(importlib.abc.MetaPathFinder):
    """Raises for the first search of a name, as a broken mount or library path may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failed = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> Spec | None:
        if fullname == self.name and not self.failed:
            self.failed = True
            raise ImportError(f"{fullname} is not there yet")
        return None


@case
def first_attempt_fails() -> None:
    finder = _FailsOnce("torch")
    sys.meta_path.insert(0, finder)
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
        raise AssertionError("torch was imported at once")
    assert finder.failed
    _fresh()
    importlib.invalidate_caches()
    _train()


def broken_inside() -> None:
    """Torch itself refuses a second attempt after a module of its own failed; both are told."""
    sys.meta_path.insert(0, _FailsOnce("torch.version"))
    for _ in range(2):
        try:
            importlib.import_module("torch")
        except ImportError as error:
            print(type(error).__name__, error)
            print(type(error.__context__).__name__, type(error.__cause__).__name__)
            _fresh()


class _Nothing(importlib.abc.MetaPathFinder):
    """Knows no module."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> Spec | None:
        return None


class _Wrapping(importlib.abc.Loader):
    """A loader around another, as import hooks of tracers have it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.executed = 0

    def create_module(self, spec: Spec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.executed += 1
        self.inner.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Vendored(importlib.abc.MetaPathFinder):
    """Finds torch on the path by itself and asks no other finder."""

    def __init__(self, *, wraps: bool) -> None:
        self.wraps = wraps
        self.found: list[str] = []

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> Spec | None:
        if fullname != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        self.found.append(fullname)
        if self.wraps:
            spec.loader = _Wrapping(spec.loader)
        return spec


@case
def finder_of_nothing_in_front() -> None:
    sys.meta_path.insert(0, _Nothing())
    _train()


@case
def vendored_in_front() -> None:
    finder = _Vendored(wraps=False)
    sys.meta_path.insert(0, finder)
    _train()
    assert finder.found == ["torch"]


@case
def vendored_in_front_with_a_loader() -> None:
    """Nobody else's loader or spec has a part in the import."""
    finder = _Vendored(wraps=True)
    sys.meta_path.insert(0, finder)
    _train()
    loader = sys.modules["torch"].__loader__
    assert isinstance(loader, _Wrapping), loader
    assert (finder.found, loader.executed) == (["torch"], 1)


class _Chained:
    """The loader of `wrapt.importer`: puts the real one back, loads, and tells."""

    def __init__(self, loader: Any, told: list[str]) -> None:
        self.loader = loader
        self.told = told

    def create_module(self, spec: Spec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: Any) -> None:
        if getattr(module, "__loader__", None) in {None, self}:
            module.__loader__ = self.loader
        if module.__spec__.loader is self:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.told.append(module.__name__)


class _Reentrant(importlib.abc.MetaPathFinder):
    """The finder of `wrapt.importer`: asks for the spec again from inside a search."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.under_way: set[str] = set()
        self.told: list[str] = []

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> Spec | None:
        if fullname != self.name or fullname in self.under_way:
            return None
        self.under_way.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
            if spec is not None and not isinstance(spec.loader, _Chained):
                spec.loader = _Chained(spec.loader, self.told)  # type: ignore[assignment]
            return spec
        finally:
            self.under_way.discard(fullname)


@case
def reentrant_in_front() -> None:
    finder = _Reentrant("torch")
    sys.meta_path.insert(0, finder)
    _train()
    assert finder.told == ["torch"]
    assert not isinstance(sys.modules["torch"].__loader__, _Chained)


@case
def reentrant_twice_in_front() -> None:
    """Two tracers with the same hook; the inner one's loader is inside the outer one's."""
    finders = [_Reentrant("torch"), _Reentrant("torch")]
    for finder in finders:
        sys.meta_path.insert(0, finder)
    _train()
    assert sum(len(finder.told) for finder in finders) >= 1


@case
def standard_finders_alone() -> None:
    """A program that wants no finder but those of Python itself."""
    sys.meta_path[:] = [
        importlib.machinery.BuiltinImporter,
        importlib.machinery.FrozenImporter,
        importlib.machinery.PathFinder,
    ]
    _train()


@case
def meta_path_of_its_own() -> None:
    """A new list in place of the old one, with the same finders."""
    sys.meta_path = list(sys.meta_path)
    _train()


@case
def import_module() -> None:
    importlib.import_module("torch")
    _train()


@case
def dunder_import() -> None:
    assert __import__("torch.nn").__name__ == "torch"
    _train()


@case
def from_torch_import_nn() -> None:
    from torch import nn

    assert nn is sys.modules["torch.nn"]
    _train()


@case
def inner_module_first() -> None:
    import torch.utils.data

    assert torch.utils.data.DataLoader is not None
    _train()


@case
def spawned_child_trains() -> None:
    """The parent never imports torch."""
    child = multiprocessing.get_context("spawn").Process(target=_train)
    child.start()
    child.join()
    assert child.exitcode == 0
    _fresh()


@case
def forked_child_trains() -> None:
    """As above, by fork, which inherits the parent's hooks."""
    child = multiprocessing.get_context("fork").Process(target=_train)
    child.start()
    child.join()
    assert child.exitcode == 0
    _fresh()


if __name__ == "__main__":
    CASES.get(sys.argv[1], broken_inside)()
