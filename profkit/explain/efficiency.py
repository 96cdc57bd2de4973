"""Doubts about comparing two logs: efficiencies that cannot be, and what neither states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.analysis.config_join import Difference
from profkit.analysis.estimate import Estimate, divide
from profkit.analysis.notices import is_log
from profkit.explain.ledger import Ledger
from profkit.text import percent, plural
from profkit.trace import RunManifest, Trace
from profkit.trace.sharing import AT_LEAST

HIGHEST = 1.05
"""Two runs of one job differ by as much; a larger gain per rank needs a reason."""

_REASONS = frozenset(
    [
        "framework",
        "precision",
        "batch_size",
        "device",
        "memory_format",
        "xla",
        "dali",
        "loader",
        "workers",
        "data",
        "image_size",
        "compile",
        "workload",
        "cpu",
        "gpu_models",
    ]
)
"""Settings that can make each rank faster; if one differs, the efficiency can be true."""


def log_caveats(base: Trace, target: Trace) -> Iterator[str]:
    """Yield what nothing shows to be alike, because a log does not state it."""
    if not (is_log(base) and is_log(target)):
        return
    for name, words in (("device", "device"), ("rows_speak_for_ranks", "number of ranks")):
        silent = []
        for each in (base, target):
            config = each.manifest.config
            is_bound = words == "number of ranks" and AT_LEAST in config
            if name not in config or is_bound:
                silent.append(each.name)
        if len(silent) == 2:
            yield f"neither log states its {words}"
        elif silent:
            yield f"{silent[0]} does not state its {words}"


def doubt_efficiency(base: Trace, target: Trace, ledger: Ledger) -> str:
    """Return why two logs cannot be of one job, or nothing if they can."""
    if not (is_log(base) and is_log(target) and ledger.per_sample):
        return ""
    few, many, efficiency = base.manifest, target.manifest, ledger.efficiency
    if few.world_size > many.world_size:
        few, many, efficiency = many, few, divide(ledger.total.target, ledger.total.base)
    return doubt(few, many, efficiency, ledger.differences)


def doubt(
    few: RunManifest, many: RunManifest, efficiency: Estimate, differences: Sequence[Difference]
) -> str:
    """Return why an efficiency cannot be, or nothing if it can.

    More ranks make no rank faster: the least that they do is to exchange gradients.
    """
    if few.world_size >= many.world_size or not efficiency.value > HIGHEST:
        return ""
    if efficiency.low is not None and efficiency.low <= 1:
        return ""
    if any(each.name in _REASONS for each in differences):
        return ""
    words = (
        f"an efficiency of {percent(efficiency.value, 0)} from {few.world_size} to "
        f"{plural(many.world_size, 'rank')} cannot be: more ranks make no rank faster, so the two "
    )
    if "log_of" in few.config and "log_of" in many.config:
        return words + (
            "logs differ in something that they do not state (precision, batch, machine, number of "
            "ranks), or a figure is wrong"
        )
    return words + "runs differ in something else (machine, its load, data), or a figure is wrong"
