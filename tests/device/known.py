"""What the product says wrongly of simulated jobs today, each with its reason. The list shrinks."""

from __future__ import annotations

import fnmatch

KNOWN: tuple[tuple[str, str, str], ...] = ()
"""Patterns of checks and of scenarios, with `|` between several, and the reason."""


def find_reason(check: str, scenario: str) -> str:
    """Return why this check of a scenario is known to fail, or nothing."""
    for checks, scenarios, reason in KNOWN:
        is_check = any(fnmatch.fnmatch(check, each) for each in checks.split("|"))
        if is_check and any(fnmatch.fnmatch(scenario, each) for each in scenarios.split("|")):
            return reason
    return ""
