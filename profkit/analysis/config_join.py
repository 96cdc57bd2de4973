"""Differences between two runs other than speed, and the ledger rows that they can affect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from profkit.trace import RunManifest
from profkit.vocab import BAD_TIMES

ANY = "any"
NONE = "none"
NOT_SAID = "not said"

AFFECTS: tuple[tuple[str, str], ...] = (
    (
        (
            r"steps|epochs|warmup|until|lr|momentum|weight_decay|seed|schedule.*|profkit_version|"
            r"steps_per_line|step_times|shm_bytes|limits\..*"
        ),
        NONE,
    ),
    (
        (
            r"workers|prefetch|data|loader|dali|bad_samples|distinct_samples|generated.*|"
            r"packages\.(nvidia-dali.*|pillow|torchvision)|variables\.DALI_.*"
        ),
        "input",
    ),
    (r"pin", "input, h2d"),
    (
        (
            r"cpu|cpu_count|memory_bytes|system|python|threads|"
            r"variables\.(OMP|MKL|KMP|GOMP|OPENBLAS|BLIS)_.*|packages\.numpy"
        ),
        "input, and any launch",
    ),
    (
        (
            r"precision|amp|memory_format|compile|autotune|tf32|image_size|"
            r"variables\.(NVIDIA_TF32|CUDNN|CUBLAS).*"
        ),
        "h2d, compute",
    ),
    (r"sync_bn", "forward, backward"),
    (r"batch_size|global_batch_size", "any, per sample"),
    (r"world_size|gpus|nodes|variables\.(NCCL|GLOO)_.*|bucket.*|backend", "allreduce, input"),
    (r"evaluate.*|validate.*|checkpoint.*|log_every", "other"),
)
"""The rows that a knob can affect, by the first pattern that matches its whole name.

A knob that matches none can affect any row.
"""

_PROVENANCE = re.compile(
    r"imported_from|sources|stated|told_by_file_name|log_grammar|log_of|sample_unit|"
    r"samples_counted_of|rows_speak_for_ranks|cards_of_one_node|(slow_lines|fast_epoch_ends)\..*|"
    r"reduced|packages\.pyarrow|"
    r"variables\.PADDLE_(MASTER|\w*ENDPOINTS?|TRAINER_ID|(GLOBAL|LOCAL)_RANK|RANK_IN_NODE)"
)
"""The origin of a run, how it is read, and the ports of its ranks are no settings of the job."""

_VERSIONS = re.compile(r"packages\..*|python|nvidia_driver")
_ALWAYS = frozenset({"workload", "framework", "profkit_version", "world_size"})
"""Every run has these; that they are equal says nothing about the job's settings."""

_FACTS = re.compile(
    r"distribution|container\..*|shm_bytes|limits\..*|gpu_memory_bytes|revision\..*|libraries\..*"
)
"""Facts that a run leaves out if they cannot be read in time: a missing one is no difference."""

_CAVEATS = {
    "batch_size": "batch a rank",
    "world_size": "ranks",
    "framework": "framework",
    "precision": "precision",
    "cpu_count": "processor cores",
}


@dataclass(frozen=True)
class Difference:
    """A knob that differs. `rows` says what it can affect."""

    name: str
    base: str
    target: str
    rows: str


def join_config(base: RunManifest, target: RunManifest) -> tuple[Difference, ...]:
    """Return every knob, version and variable that differs, those without any effect last."""
    left, right = _settings(base), _settings(target)
    found = []
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name, NOT_SAID), right.get(name, NOT_SAID)
        if NOT_SAID in {before, after} and _FACTS.fullmatch(name):
            continue
        if left.get(name) != right.get(name) and not _PROVENANCE.fullmatch(name):
            words = base.config.get(name), target.config.get(name)
            if isinstance(words[0], list) and isinstance(words[1], list):
                before, after = find_words(words[0], words[1])
            found.append(Difference(name, before, after, affected_rows(name)))
    return tuple(sorted(found, key=lambda each: each.rows == NONE))


def find_words(base: Sequence[Any], target: Sequence[Any]) -> tuple[str, str]:
    """Return the words of two commands that differ, each with the option before it."""
    left, right = list(map(str, base)), list(map(str, target))
    parts: tuple[list[str], list[str]] = ([], [])
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            continue
        has_option = kind == "replace" and start > 0 and left[start - 1].startswith("-")
        for part, words, begin, until in (
            (parts[0], left, start, end),
            (parts[1], right, first, last),
        ):
            part.append(" ".join(words[begin - has_option : until]))
    shown = []
    for part in parts:
        shown.append(" ... ".join(filter(None, part)) or NONE)
    return shown[0], shown[1]


class Recorded(NamedTuple):
    """The kinds of settings that both runs recorded, so that they can be called equal."""

    knobs: bool
    versions: bool
    variables: bool


def find_recorded(base: RunManifest, target: RunManifest) -> Recorded:
    """Return what both runs recorded of their configuration and environment."""
    alike = set(_settings(base)) & set(_settings(target))
    names = {name for name in alike if not _PROVENANCE.fullmatch(name)}
    versions = {name for name in names if _VERSIONS.fullmatch(name)}
    # That no variable was set is recorded as an empty table.
    variables = all("variables" in each.environment for each in (base, target))
    knobs = {name for name in names - versions if name not in _ALWAYS}
    return Recorded(bool(knobs), bool(versions), variables)


def affected_rows(name: str) -> str:
    for pattern, rows in AFFECTS:
        if re.fullmatch(pattern, name):
            return rows
    return ANY


def _settings(manifest: RunManifest) -> dict[str, str]:
    is_log = manifest.workload == manifest.config.get("log_of")
    found = {
        "workload": "" if is_log else manifest.workload,
        "framework": manifest.framework,
        "profkit_version": manifest.profkit_version,
        "world_size": manifest.world_size,
        **manifest.config,
        **manifest.environment,
    }
    return dict(_flat(found))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            yield f"{prefix}{name}", str(value)


def find_unlike(base: RunManifest, target: RunManifest) -> tuple[str, ...]:
    """Return what rules a verdict out: implausible times, or another device or workload."""
    left, right = _settings(base), _settings(target)
    found: list[str] = []
    for flag in (*base.flags, *target.flags):
        if flag.startswith(BAD_TIMES):
            found.append(flag)
    names = ["workload", "device"]
    if _device_kind(left.get("device", "")) == "cpu":
        names.append("cpu")
    for name in names:
        before, after = _device_kind(left.get(name, "")), _device_kind(right.get(name, ""))
        found += _contrast(f"unlike {name}", before, after)
    return tuple(found)


def _device_kind(device: str) -> str:
    """Return the device without its number on the machine."""
    return re.sub(r":\d+$", "", device)


def _contrast(label: str, before: str, after: str) -> Iterable[str]:
    return [f"{label}: {before} and {after}"] if before and after and before != after else []


def find_caveats(base: RunManifest, target: RunManifest) -> tuple[str, ...]:
    """Return the differences that mean that the two runs are no repeats of one job."""
    left, right = _settings(base), _settings(target)
    found: list[str] = []
    for name, label in _CAVEATS.items():
        found += _contrast(label, left.get(name, ""), right.get(name, ""))
    return tuple(found)
