"""What the product says wrongly of simulated jobs today, each with its reason. The list shrinks."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """Checks that fail for some scenarios, by patterns of their names, and why."""

    reason: str
    checks: Sequence[str]
    scenarios: Sequence[str]
    but: Sequence[str] = ()
    """Patterns of scenarios that are right."""

    def holds(self, check: str, scenario: str) -> bool:
        if check not in self.checks or any(fnmatch.fnmatch(scenario, name) for name in self.but):
            return False
        return any(fnmatch.fnmatch(scenario, name) for name in self.scenarios)


KNOWN: Sequence[Known] = ()


def find_reason(check: str, scenario: str) -> str:
    """Return why this check of a scenario is known to fail, or nothing."""
    for known in KNOWN:
        if known.holds(check, scenario):
            return known.reason
    return ""
