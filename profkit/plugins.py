"""The plug-in folders: their modules and installed entry points, listed without an import."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from profkit.errors import UsageError
from profkit.text import did_you_mean


@dataclass(frozen=True)
class Seam:
    """A kind of plug-in: to add one, add one file.

    `package` holds a module for each plug-in, `attribute` is what each module must define, and
    `group` is the entry-point group through which other packages add theirs. The module `base`
    defines the contract. It, modules with a leading underscore, and those in `apart` are not
    plug-ins. A module in `tables` holds several, each under its own name.
    """

    kind: str
    package: str
    attribute: str
    group: str
    apart: frozenset[str] = frozenset()
    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """Return all names, without importing any plug-in."""
        return tuple(sorted(self._targets()))

    def load(self, name: str) -> Any:
        """Import one plug-in; an unknown name is a `UsageError` that suggests the nearest."""
        targets = self._targets()
        if name not in targets:
            known = ", ".join(sorted(targets))
            suggestion = did_you_mean(name, targets)
            raise UsageError(f"unknown {self.kind} '{name}'{suggestion} (there are: {known})")
        return _load(targets[name])

    def load_all(self) -> tuple[dict[str, Any], dict[str, Exception]]:
        """Import every plug-in; return those that load, and the error of each that does not."""
        loaded: dict[str, Any] = {}
        broken: dict[str, Exception] = {}
        for name, target in sorted(self._targets().items()):
            try:
                loaded[name] = _load(target)
            except Exception as error:  # noqa: BLE001  # a plug-in of others may fail in any way
                broken[name] = error
        return loaded, broken

    def _targets(self) -> Mapping[str, str]:
        targets = {entry.name: entry.value for entry in metadata.entry_points(group=self.group)}
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            if not module.name.startswith("_") and module.name not in {"base", *self.apart}:
                path = f"{self.package}.{module.name}"
                for name in self.tables.get(module.name, ()):
                    targets[name] = f"{path}:{name}"
                if module.name not in self.tables:
                    targets[module.name] = f"{path}:{self.attribute}"
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
    frozenset({"logs", "reading", "texts", "window_rows"}),
)
EXPORTERS = Seam("format", "profkit.exporters", "EXPORTER", "profkit.exporters")
RULES = Seam(
    "rule",
    "profkit.explain.rules",
    "find",
    "profkit.rules",
    tables={
        "compiling": ("compile_on_one_rank", "graph_breaks", "recompiles"),
        "stages": ("long_last_stage", "uneven_stages"),
        "counted": (
            "accumulation_without_no_sync",
            "few_cores",
            "huge_bucket",
            "interpreter_lock",
            "launch_bound",
            "layout_copies",
            "loader_contention",
            "sync_stalls",
            "tiny_buckets",
            "unpinned_copy",
        ),
    },
)
SCREENS = Seam("screen", "profkit.tui.screens", "SCREEN", "profkit.screens", frozenset({"runs"}))
