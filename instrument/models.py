"""The models that a job trains: they are recognised again, and never kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

MOST_MODELS = 64
"""A job that makes a module for each step has no more of them remembered."""


@dataclass(eq=False)
class TrainedModels:
    """The outermost modules of one framework that were called with gradients."""

    framework: str
    parts: Callable[[Any], Iterable[Any]]
    """Return a model and all modules inside it."""
    parameters: Callable[[Any], Iterable[Any]]
    """Return the parameters of a model for which gradients are computed."""
    version: Callable[[Any], int]
    """Return a number that changes when a parameter is written in place."""
    ids: set[int] = field(default_factory=set)
    """The ids of the models, for a hook to ask."""
    _models: list[weakref.ref[Any]] = field(default_factory=list)
    _parts: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """Modules inside the models, as far as they were asked for."""
    _versions: dict[int, int] = field(default_factory=dict)

    def note_call(self, model: Any, with_gradients: Any) -> bool | None:
        """Note a call; return true with gradients, and `None` if a trained model is evaluated."""
        if with_gradients:
            self.add(model)
            return True
        return None if not model.training and self.holds(model) else False

    def add(self, model: Any) -> None:
        """Remember a model that was called with gradients."""
        if len(self.ids) < MOST_MODELS and id(model) not in self.ids:
            self.ids.add(id(model))
            self._models.append(weakref.ref(model))
            parameter = next(iter(self.parameters(model)), None)
            if parameter is not None:
                self._versions[id(model)] = self.version(parameter)

    @property
    def alive(self) -> list[Any]:
        """The models that the job still has."""
        models = [model() for model in self._models]
        return [model for model in models if model is not None]

    def holds(self, module: Any) -> bool:
        """Return true if the module is one of the models, or inside one."""
        if id(module) in self.ids or module in self._parts:
            return True
        for model in self.alive:
            for part in self.parts(model):
                if part is module:
                    self._parts.add(module)
                    return True
        return False

    def are_updated(self) -> bool:
        """Return true if gradients were used up, or parameters written, since the last call.

        A model that no gradients have reached has none of them either, so all must have none.
        """
        is_written, has_gradients = False, []
        for model in self.alive:
            parameter = next(iter(self.parameters(model)), None)
            if parameter is not None:
                version = self.version(parameter)
                before, self._versions[id(model)] = self._versions.get(id(model)), version
                is_written |= version != before
                has_gradients.append(parameter.grad is not None)
        return is_written or (bool(has_gradients) and not any(has_gradients))


def leave_models(trained: Iterable[TrainedModels], optimizers: Iterable[Any]) -> bool:
    """Return true if a trained model has parameters, and the optimizers update none of them.

    Another optimizer does, as of a network that is trained against another one.
    """
    updated: set[int] = set()
    for optimizer in optimizers:
        groups = getattr(optimizer, "param_groups", None)
        if groups is None:  # Paddle's
            groups = [{"params": getattr(optimizer, "_parameter_list", None) or ()}]
        for group in groups:
            updated.update(map(id, group["params"]))
    if not updated:
        return False
    for models in trained:
        for model in models.alive:
            own = set(map(id, models.parameters(model)))
            if own and updated.isdisjoint(own):
                return True
    return False
