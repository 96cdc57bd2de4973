"""What differs between two runs beside their speed, and which rows of the ledger it can affect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profkit.trace import RunManifest
from profkit.vocab import BAD_TIMES

ANY = "any"
NONE = "none"
NOT_SAID = "not said"

AFFECTS: tuple[tuple[str, str], ...] = (
    (
        r"steps|epochs|warmup|until|lr|momentum|weight_decay|seed|schedule.*|profkit_version|steps_per_line|step_times",
        NONE,
    ),
    (
        r"workers|prefetch|data|loader|dali|bad_samples|generated.*|packages\.(nvidia-dali.*|pillow|torchvision)|variables\.DALI_.*",
        "input",
    ),
    (r"pin", "input, h2d"),
    (
        r"cpu|cpu_count|memory_bytes|system|python|threads|variables\.(OMP|MKL|KMP|GOMP|OPENBLAS|BLIS)_.*|packages\.numpy",
        "input, and any launch",
    ),
    (
        r"precision|amp|memory_format|compile|image_size|variables\.(NVIDIA_TF32|CUDNN|CUBLAS).*",
        "h2d, compute",
    ),
    (r"sync_bn", "forward, backward"),
    (r"batch_size|global_batch_size", "any, per sample"),
    (r"world_size|gpus|nodes|variables\.(NCCL|GLOO)_.*|bucket.*|backend", "allreduce, input"),
    (r"evaluate|validate.*|checkpoint.*|log_every", "other"),
)
"""The first pattern that fits a knob's whole name says which rows it can affect; what fits none can affect any row."""

_PROVENANCE = re.compile(
    r"imported_from|sources|stated|told_by_file_name|log_grammar|log_of|sample_unit|samples_counted_of|rows_speak_for_ranks|reduced|packages\.pyarrow"
    r"|variables\.PADDLE_(MASTER|\w*ENDPOINTS?|TRAINER_ID|(GLOBAL|LOCAL)_RANK|RANK_IN_NODE)"
)
"""Where a run comes from, how it is read, and at which ports its ranks meet is no setting of the job."""


@dataclass(frozen=True)
class Difference:
    """A knob that differs. `rows` says what it can affect."""

    name: str
    base: str
    target: str
    rows: str


def join_config(base: RunManifest, target: RunManifest) -> tuple[Difference, ...]:
    """Every knob, version and variable that differs, those that can affect nothing last."""
    left, right = _settings(base), _settings(target)
    names = [
        name
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name) and not _PROVENANCE.fullmatch(name)
    ]
    found = (
        Difference(name, left.get(name, NOT_SAID), right.get(name, NOT_SAID), affected_rows(name))
        for name in names
    )
    return tuple(sorted(found, key=lambda each: each.rows == NONE))


def affected_rows(name: str) -> str:
    return next((rows for pattern, rows in AFFECTS if re.fullmatch(pattern, name)), ANY)


def _settings(manifest: RunManifest) -> dict[str, str]:
    described = {
        "workload": "" if manifest.workload == manifest.config.get("log_of") else manifest.workload,
        "framework": manifest.framework,
        "profkit_version": manifest.profkit_version,
    }
    found = {
        **described,
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
    """What makes a verdict impossible: another device or workload is not the same job run slower, and some sources have times that cannot be."""
    left, right = _settings(base), _settings(target)
    on_cpu = _device_kind(left.get("device", "")) == "cpu"
    pairs = (
        (name, _device_kind(left.get(name, "")), _device_kind(right.get(name, "")))
        for name in ("workload", "device", *["cpu"] * on_cpu)
    )
    bad = (flag for run in (base, target) for flag in run.flags if flag.startswith(BAD_TIMES))
    return *bad, *(
        f"unlike {name}: {before} and {after}"
        for name, before, after in pairs
        if before and after and before != after
    )


def _device_kind(device: str) -> str:
    """The device without its number on the machine."""
    return re.sub(r":\d+$", "", device)


def find_caveats(base: RunManifest, target: RunManifest) -> tuple[str, ...]:
    """What a reader must know who compares the two: they are no repeats of one job."""
    left, right = _settings(base), _settings(target)
    words = {
        "batch_size": "batch a rank",
        "world_size": "ranks",
        "framework": "framework",
        "precision": "precision",
        "cpu_count": "processor cores",
    }
    pairs = ((label, left.get(name, ""), right.get(name, "")) for name, label in words.items())
    return tuple(
        f"{label}: {before} and {after}"
        for label, before, after in pairs
        if before and after and before != after
    )
