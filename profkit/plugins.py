"""The seams: a folder's modules and installed entry points, listed without importing them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from profkit.errors import UsageError
from profkit.text import did_you_mean


@dataclass(frozen=True)
class Seam:
    """A place where one file more adds one thing more.

    `package` holds a module for each thing, `attribute` is what each module must define, and
    `group` is the entry-point group by which other packages add theirs. The module `base` defines the
    contract. It, modules whose names begin with an underscore, and those in `apart` are no plug-ins.
    """

    kind: str
    package: str
    attribute: str
    group: str
    apart: frozenset[str] = frozenset()

    def names(self) -> tuple[str, ...]:
        """All names, without importing any of them."""
        return tuple(sorted(self._targets()))

    def load(self, name: str) -> Any:
        """The one thing of this name; an unknown name is a `UsageError` that tells the nearest."""
        targets = self._targets()
        if name not in targets:
            raise UsageError(
                f"unknown {self.kind} '{name}'{did_you_mean(name, targets)} (there are: {', '.join(sorted(targets))})"
            )
        return _load(targets[name])

    def load_all(self) -> tuple[dict[str, Any], dict[str, Exception]]:
        """Everything that loads, and the error of each that does not."""
        loaded: dict[str, Any] = {}
        broken: dict[str, Exception] = {}
        for name, target in sorted(self._targets().items()):
            try:
                loaded[name] = _load(target)
            except Exception as error:  # noqa: BLE001  # another package's plug-in may fail in any way; the others still count
                broken[name] = error
        return loaded, broken

    def _targets(self) -> Mapping[str, str]:
        targets = {entry.name: entry.value for entry in metadata.entry_points(group=self.group)}
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            if not module.name.startswith("_") and module.name not in {"base", *self.apart}:
                targets[module.name] = f"{self.package}.{module.name}:{self.attribute}"
        return targets


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


WORKLOADS = Seam(
    "workload",
    "profkit.workloads",
    "WORKLOAD",
    "profkit.workloads",
    frozenset({"datasets", "training"}),
)
COLLECTORS = Seam(
    "collector", "profkit.collectors", "COLLECTOR", "profkit.collectors", frozenset({"poller"})
)
IMPORTERS = Seam(
    "format",
    "profkit.importers",
    "IMPORTER",
    "profkit.importers",
    frozenset({"logs", "reading", "window_rows"}),
)
EXPORTERS = Seam("format", "profkit.exporters", "EXPORTER", "profkit.exporters")
RULES = Seam("rule", "profkit.explain.rules", "find", "profkit.rules")
SCREENS = Seam("screen", "profkit.tui.screens", "SCREEN", "profkit.screens", frozenset({"runs"}))
