"""What else differs between the runs of two logs."""

from __future__ import annotations

from profkit.analysis.config_join import NOT_SAID
from profkit.explain.rules.base import Case

CONFOUNDERS = ("framework", "precision", "batch_size", "memory_format", "dali", "loader", "xla")
"""Settings that can make a step longer as well."""


def other_differences(case: Case) -> str:
    """Return what both state, differs besides the ranks, and can change the time of a sample."""
    words = []
    for each in case.ledger.differences:
        if each.name in CONFOUNDERS and NOT_SAID not in {each.base, each.target}:
            words.append(f"{each.name} {each.base} and {each.target}")
    return ", ".join(words)
