"""The planted faults of `plants.txt`, the jobs that they are in, and what names them correctly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".txt")
OTHER = "other"
NAMED = frozenset(
    [
        "accumulation_without_no_sync",
        "amp_without_effect",
        "bad_samples",
        "checkpoint_in_training",
        "drift",
        "evaluation_in_training",
        "exposed_communication",
        "garbage_pauses",
        "host_busy",
        "huge_bucket",
        "input_bound",
        "input_stalls",
        "late_rank",
        "launch_bound",
        "layout_copies",
        "loader_contention",
        "optimizer_unfused",
        "overlapped_reader",
        "published_mismatch",
        "skipped_amp_steps",
        "sync_stalls",
        "thread_oversubscription",
        "tiny_buckets",
        "unpinned_copy",
        "worker_start",
    ]
)
"""Kinds that had a definite meaning when the faults were written."""

PARTS: Mapping[str, str] = {
    "@compute": "forward backward",
    "@all": "forward backward clip optimizer",
}
_BEFORE = "between backward and;between the backward;backward and the optimizer"
_BEFORE += ";before the optimizer;after backward;after the backward;from backward to optimizer"
_AFTER = "after the optimizer;after optimizer;after the step;between steps;between two steps"
_AFTER += ";between optimizer;optimizer and the next;from optimizer to"
WORDS: Mapping[str, str] = {
    "@before_step": _BEFORE,
    "@after_step": _AFTER,
    "@model": "parameter;model grew;larger model;bigger model;model size",
    "@disk": f"fsync;disk;written;writes;blocked;log;{_AFTER}",
    "@float64": "float64;double;precision;dtype",
    "@recompute": "recomput;activation checkpoint;activation_checkpointing"
    ";forward again;forward twice",
    "@lock": "interpreter;GIL;Python thread",
    "@item": f".item;item();reads;values read;{_BEFORE}",
    "@unfused": "fused;foreach;single;one by one;per parameter",
    "@input": "data;input;batch;outside all phases",
    "@update": f"{_BEFORE};optimizer;outside all phases",
    "@copies": "copy;copies;copied;convert;h2d;after data;before forward;to forward",
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "job_translate": {"accumulate": 2, "layers": 1, "batch": 8, "width": 64},
    "job_metric": {"batch": 16, "width": 32, "layers": 2, "workers": 1},
    "job_clicks": {"batch": 32, "width": 384, "layers": 2},
}
"""The healthy options of each job."""


@dataclass(frozen=True)
class Fault:
    """A pair of jobs that differ in `change`; a healthy pair has no kinds.

    `truth` says where the job's own clock has the true cost. `planted` is the injected time per
    step, on the rank with the most. Names of parts mean how much more they take together than in
    the healthy twin, on the mean of the ranks. `None` is for a fault that makes no step longer.
    """

    name: str
    job: str
    change: Mapping[str, Any]
    kinds: tuple[str, ...] = ()
    truth: str | None = None
    words: tuple[str, ...] = ()
    """Words, one of which the reported cause must contain in addition to its kind."""
    base: Mapping[str, Any] | None = None
    """Options of both twins."""
    must: str = ""
    """Text that the reported cause must contain as well: the rank that is late."""
    ranks: int = 1
    kernels: bool = False
    """If true, both twins capture their operators in some steps."""
    noise: str = ""
    """The side next to which other processes compute: `target` or `both`."""

    @property
    def framework(self) -> str:
        return "paddle" if self.job == "job_clicks" else "torch"

    @property
    def healthy(self) -> bool:
        return not self.kinds

    def options(self, *, planted: bool) -> dict[str, Any]:
        """Return the options of a twin's job. Two ranks leave no core for workers."""
        shape = {**SHAPES[self.job], **({"workers": 0} if self.ranks > 1 else {})}
        return {**shape, **(self.base or {}), **(self.change if planted else {})}


def _value(text: str) -> Any:
    if text in {"yes", "no"}:
        return text == "yes"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _options(text: str) -> dict[str, Any]:
    found = {}
    for word in text.split():
        name, _, value = word.partition("=")
        found[name] = _value(value)
    if "late" in found:
        rank, place, ms = found.pop("late").split(",")
        found |= {"late_rank": int(rank), "late_place": place, "late_ms": float(ms)}
    return found


def _read(line: str) -> Fault:
    cells = [cell.strip() for cell in line.split("|")]
    name, change, kinds, truth, more, words = cells + [""] * (6 - len(cells))
    base, options = _options(more), _options(change)
    given: dict[str, Any] = {
        key: base.pop(key) for key in ("ranks", "noise", "kernels") if key in base
    }
    listed = [WORDS.get(word.strip(), word.strip()) for word in words.split(",") if word]
    return Fault(
        name,
        f"job_{name.removeprefix('healthy_').split('_')[0]}",
        options,
        () if kinds == "-" else tuple(kinds.split()),
        None if truth == "-" else PARTS.get(truth, truth),
        tuple(";".join(listed).split(";")) if listed else (),
        base,
        f"rank {options['late_rank']}'s" if "late_rank" in options else "",
        **given,
    )


FAULTS: tuple[Fault, ...] = tuple(
    _read(line) for line in TABLE.read_text().splitlines() if line and not line.startswith("#")
)


def named(names: list[str]) -> tuple[Fault, ...]:
    """Return the faults with these names, or all of them."""
    known = {fault.name: fault for fault in FAULTS}
    missing = [name for name in names if name not in known]
    if missing:
        raise SystemExit(f"no such fault: {', '.join(missing)} (there are: {', '.join(known)})")
    return tuple(known[name] for name in names) if names else FAULTS
