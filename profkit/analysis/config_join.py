"""Differences between two runs other than speed, and the ledger rows that they can affect."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from profkit.trace import RunManifest
from profkit.trace.flag import FlagKind

COMPUTE = ("forward", "backward", "optimizer")
"""The phases in which the ranks' own processes compute."""

ANY = "any"
NONE = "none"
NOT_SAID = "not said"
BY_CHANCE = "not known: they vary"
"""Shapes that vary from batch to batch differ between runs of one job, too."""

HARMLESS = frozenset({NONE, BY_CHANCE})
"""The rows of differences that do not make two runs different jobs."""

_MEETING = re.compile(r"--?(?:master|rdzv|rendezvous)[-_](?:port|addr|endpoint|id)")

BATCH_SHAPES, BATCH_ELEMENTS = "batch_shapes", "batch_elements"

SURE_ERRORS = 3.0
"""Two means differ surely by more than so many standard errors of their difference."""

AFFECTS: tuple[tuple[str, str], ...] = (
    (
        (
            r"steps|epochs|warmup|until|lr|momentum|weight_decay|seed|schedule.*|profkit_version|"
            r"steps_per_line|printed_every|step_times|shm_bytes|limits\..*|batch_shapes_distinct"
        ),
        NONE,
    ),
    (
        (
            r"workers|prefetch|persistent_workers|data|loader|dali|bad_samples|distinct_samples|"
            r"generated.*|packages\.(nvidia-dali.*|pillow|torchvision)|variables\.DALI_.*"
        ),
        "data",
    ),
    (r"pin", "data, h2d"),
    (
        (
            r"cpu|cpu_count|memory_bytes|system|python|threads|"
            r"variables\.(OMP|MKL|KMP|GOMP|OPENBLAS|BLIS)_.*|packages\.numpy"
        ),
        "data, and any launch",
    ),
    (
        (
            r"amp|memory_format|compile|autotune|tf32|image_size|deterministic|cudnn_benchmark|"
            r"matmul_precision|variables\.(NVIDIA_TF32|CUDNN|CUBLAS).*"
        ),
        "h2d, compute",
    ),
    (r"sync_bn|anomaly_mode|activation_checkpointing", "forward, backward"),
    (r"ddp_.*", "forward, backward, allreduce"),
    (r"optimizer(_foreach|_fused|_multi.*|_capturable|_groups)?|optimizers_count", "optimizer"),
    # Between phases, the loop's own code works on the same weights and gradients.
    (r"precision", "h2d, compute, allreduce, unknown"),
    (r"model|modules_count|parameters_.*", "compute, allreduce, unknown"),
    (r"batch_shapes|batch_elements", "data, h2d, compute"),
    (r"packages\.(torch|paddlepaddle.*|triton.*)|nvidia_driver", "compute, allreduce"),
    (r"batch_size|global_batch_size", "any, per sample"),
    (r"pipeline\..*", "forward, backward, allreduce, unknown"),
    (r"world_size|gpus|nodes|variables\.(NCCL|GLOO)_.*|bucket.*|backend", "allreduce, data"),
    (r"evaluate.*|validate.*|checkpoint.*|log_every", "other"),
)
"""The rows that a knob can affect, by the first pattern that matches its whole name.

A knob that matches none can affect any row.
"""

_PROVENANCE = re.compile(
    r"imported_from|sources|stated|told_by_file_name|log_grammar|log_of|sample_unit|reduced|"
    r"device_idle\..*|"
    r"samples_counted_of|rows_speak_for_ranks|ranks_at_least|cards_of_one_node|"
    r"data_parallel\..*|pipeline\.own_stages|repeats\..*|"
    r"machine_probes|packages\.pyarrow|batch_elements_error|"
    r"variables\.PADDLE_(MASTER|\w*ENDPOINTS?|TRAINER_ID|(GLOBAL|LOCAL)_RANK|RANK_IN_NODE)"
)
"""The origin of a run, how it is read, and the ports of its ranks are no settings of the job."""

_VERSIONS = re.compile(r"packages\..*|python|nvidia_driver")
_ALWAYS = frozenset({"workload", "framework", "profkit_version", "world_size"})
"""Every run has these; that they are equal says nothing about the job's settings."""

_FACTS = re.compile(
    r"distribution|container\..*|shm_bytes|limits\..*|gpu_memory_bytes|revision\..*|libraries\..*|"
    r"virtual"
)
"""Facts that a run leaves out if they cannot be read in time: a missing one is no difference."""

_CAVEATS = {
    "batch_size": "batch per rank",
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

    def can_affect(self, row: str, *, on_host: bool = False) -> bool:
        """Return true if the knob is known to act on a row; one that may act on any is not.

        With `on_host`, the host does the work itself that it launches on a device otherwise.
        """
        named = self.rows.replace(",", " ").split()
        if row not in COMPUTE:
            return row in named
        return row in named or "compute" in named or (on_host and "launch" in named)


def join_config(base: RunManifest, target: RunManifest) -> tuple[Difference, ...]:
    """Return every knob, version and variable that differs, those without any effect last."""
    left, right = _settings(base), _settings(target)
    found = []
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name, NOT_SAID), right.get(name, NOT_SAID)
        if NOT_SAID in {before, after} and _FACTS.fullmatch(name):
            continue
        if left.get(name) != right.get(name) and not _PROVENANCE.fullmatch(name):
            first, then = base.config.get(name), target.config.get(name)
            if isinstance(first, list) and isinstance(then, list):
                before, after = find_words(_without_meeting(first), _without_meeting(then))
                if before == after:
                    continue
            rows = affected_rows(name)
            if name == BATCH_SHAPES and not _is_other_sample(left, right):
                rows = BY_CHANCE if _varies(left) or _varies(right) else NONE
            elif name == BATCH_ELEMENTS and not _are_other_sizes(left, right):
                rows = BY_CHANCE
            elif name == "workload" and _has_same_script(base, target):
                rows = NONE
            found.append(Difference(name, before, after, rows))
    return tuple(sorted(found, key=lambda each: each.rows in HARMLESS))


def _without_meeting(words: Sequence[Any]) -> list[str]:
    """Return a command without the options that say where its ranks meet."""
    kept: list[str] = []
    is_value = False
    for word in map(str, words):
        if not is_value and not _MEETING.match(word):
            kept.append(word)
        is_value = not is_value and bool(_MEETING.fullmatch(word))
    return kept


def find_words(base: Sequence[Any], target: Sequence[Any]) -> tuple[str, str]:
    """Return the words of two commands that differ, each with the option before it."""
    left, right = list(map(str, base)), list(map(str, target))
    parts: tuple[list[str], list[str]] = ([], [])
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            continue
        has_option = kind == "replace" and start > 0 and left[start - 1].startswith("-")
        sides = (parts[0], left, start, end), (parts[1], right, first, last)
        for part, words, begin, until in sides:
            part.append(" ".join(words[begin - has_option : until]))
    shown = []
    for part in parts:
        shown.append(" ... ".join(filter(None, part)) or NONE)
    return shown[0], shown[1]


def _is_other_sample(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    """Return true if the samples of two runs have other shapes.

    Batches of many shapes differ by chance (two may be the usual and the last one), and the first
    number is the size of the batch.
    """
    if _varies(left) or _varies(right):
        return False
    samples = []
    for run in (left, right):
        shapes = run[BATCH_SHAPES].split(", ") if BATCH_SHAPES in run else []
        samples.append([shape.partition("x")[2] for shape in shapes])
    return samples[0] != samples[1]


def _varies(run: Mapping[str, str]) -> bool:
    return run.get("batch_shapes_distinct", "1") not in {"1", "2"}


def _are_other_sizes(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    """Return true if batches of varying shapes surely have another mean size."""
    means, errors = [], []
    for run in (left, right):
        try:
            means.append(float(run[BATCH_ELEMENTS]))
            errors.append(float(run["batch_elements_error"]))
        except (KeyError, ValueError):
            return False
    return abs(means[1] - means[0]) > SURE_ERRORS * math.hypot(*errors)


def _has_same_script(base: RunManifest, target: RunManifest) -> bool:
    """Return true if two runs are of one script or module, whatever they were named."""
    return bool(script := find_script(base)) and script == find_script(target)


def find_script(manifest: RunManifest) -> str:
    """Return the name of the script or module of a run's command; empty for other programs."""
    words = manifest.config.get("command")
    words = list(map(str, words)) if isinstance(words, list) else []
    found = [word.rpartition("/")[2] for word in words if word.endswith((".py", ".sh"))]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    # A launcher is a module as well, and names the job's module behind itself.
    return next(iter([*found, *reversed(modules)]), "")


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
    return Recorded(bool(names - versions - _ALWAYS), bool(versions), variables)


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
    parameters = manifest.config.get("parameters_bytes")
    if isinstance(parameters, Mapping):  # a data type that one run lacks is no unknown figure
        found["parameters_bytes"] = ", ".join(f"{kind} {size}" for kind, size in parameters.items())
    if "parameters_fingerprint" in manifest.config:  # a described job without it has none
        found.setdefault("activation_checkpointing", False)
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
        if flag.kind is FlagKind.BAD_TIMES:
            found.append(flag)
    names = ["device"]
    if not _has_same_script(base, target):
        names.insert(0, "workload")
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
    if before and after and before != after:
        return [f"{label}: {before} and {after}"]
    return []


def find_caveats(base: RunManifest, target: RunManifest) -> tuple[str, ...]:
    """Return the differences that mean that the two runs are no repeats of one job."""
    left, right = _settings(base), _settings(target)
    found: list[str] = []
    for name, label in _CAVEATS.items():
        found += _contrast(label, left.get(name, ""), right.get(name, ""))
    return tuple(found)
