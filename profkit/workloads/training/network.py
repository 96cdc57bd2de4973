"""Networks that are written once and built in either framework.

A network is written against `ops`: `ops_torch` or `ops_paddle`, two modules with the same names.
Nothing here imports a framework before a builder is called.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from profkit.workloads.base import Build, Parts

Ops = ModuleType
"""The module of operations of one framework."""

Tensor = Any
"""A tensor of the framework that `ops` belongs to."""

Factors = tuple[float, float]
"""A weight's factors on the learning rate and on the weight decay."""

Rule = Callable[[str, Sequence[int]], Factors]
"""Returns the factors of a weight from its name and shape."""


def alike(name: str, shape: Sequence[int]) -> Factors:
    """Return the same factors for every weight."""
    return 1.0, 1.0


class Part:
    """A part of a network, which `make_part` turns into a module of the framework."""

    ops: ClassVar[Ops]


def make_part(ops: Ops, kind: type[Part], *given: Any) -> Any:
    """Return a part of this kind that is also a module of the framework of `ops`."""
    names = {"ops": ops, "__module__": kind.__module__}
    return type(kind.__name__, (kind, ops.Module), names)(*given)


def builders(make: Callable[[Build, Ops], Parts]) -> Mapping[str, Callable[[Build], Parts]]:
    """Return one builder per framework from a function that builds with given operations."""

    def build(framework: str, given: Build) -> Parts:
        ops = importlib.import_module(f"profkit.workloads.training.ops_{framework}")
        return make(given, ops)

    return {name: functools.partial(build, name) for name in ("torch", "paddle")}


@contextlib.contextmanager
def predictor(ops: Ops, model: Any) -> Iterator[Callable[[Any], Any]]:
    """Yield a function from input to output arrays, with the model in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        with ops.no_grad():
            yield lambda images: ops.to_numpy(ops.to_float(model(ops.to_tensor(images, model))))
    finally:
        if was_training:
            model.train()
