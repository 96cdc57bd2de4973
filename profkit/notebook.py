"""Lets objects of lower layers show themselves in a notebook, drawn by a higher one."""

from __future__ import annotations

import importlib
from types import ModuleType

DRAWS = "profkit.report.in_notebook"
"""The module that draws them; a job that only records never loads it."""


class ShownInNotebook:
    """An object that a notebook shows as HTML if it is the value of a cell."""

    def _repr_html_(self) -> str:
        return str(importlib.import_module(DRAWS).show(self))


class CallablePackage(ModuleType):
    """A package that is a function as well, for a notebook: `profkit.report(path)`."""

    def __call__(self, *runs: object) -> object:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(DRAWS), name)(*runs)
