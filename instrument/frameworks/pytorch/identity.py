"""The description of a job that trains with PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from profkit.instrument.frameworks.pytorch.layout import LAYOUT, describe_layout
from profkit.instrument.frameworks.pytorch.libraries import note_libraries
from profkit.instrument.guard import guarded
from profkit.instrument.identity import Facts, Seen, describe_parameters

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
"""The names of data types in `run.json`, as the reference systems write them."""

DDP_OPTIONS = {
    "bucket_bytes_cap": "bucket_bytes",
    "find_unused_parameters": "ddp_find_unused_parameters",
    "static_graph": "ddp_static_graph",
    "broadcast_buffers": "ddp_broadcast_buffers",
    "gradient_as_bucket_view": "ddp_gradient_as_bucket_view",
}
"""Attributes of `DistributedDataParallel`, and their names in `run.json`."""

LOADER_OPTIONS = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "pin_memory": "pin",
    "persistent_workers": "persistent_workers",
    "batch_size": "batch_size",
}
"""Attributes of `DataLoader`, and their names in `run.json`."""


def describe_thread() -> Facts:
    """Return facts that belong to the calling thread, which trains."""
    return {"threads": torch.get_num_threads(), "anomaly_mode": torch.is_anomaly_enabled()}


def autocast_dtype() -> str:
    """Return the data type of the mixed precision that is on now."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            name = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            return PRECISIONS.get(name, name)
    return ""


def describe(seen: Seen, models: list[Any]) -> Facts:
    """Return the facts of a job that trains these models."""
    facts = _describe_models(models)
    facts |= _describe_optimizers(seen.living_optimizers())
    facts |= seen.loader
    note_libraries()
    facts |= guarded("identity: layout", describe_layout, {})(models)
    for model in models:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            facts |= _options(model, DDP_OPTIONS)
    for name, read in _FLAGS.items():
        facts[name] = guarded(f"identity: {name}", read, None)()
    if seen.precision:
        facts["precision"] = seen.precision
    return facts


def _is_compiled() -> bool:
    """Return true if the compiler has compiled anything: a model, a function, an optimizer."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["frames"]["total"] > 0


_FLAGS = {
    "compile": _is_compiled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "matmul_precision": torch.get_float32_matmul_precision,
}


def _describe_models(models: list[Any]) -> Facts:
    """Describe the models that have parameters; one inside another counts once."""
    names: list[str] = []
    seen: set[int] = set()
    trained: list[tuple[str, tuple[int, ...], str, int]] = []
    modules, checkpoints = 0, False
    for model in models:
        own = list(_parameters(model, seen))
        if not own:
            continue
        unwrapped = _unwrapped(model)
        names.append(type(unwrapped).__name__)
        trained += own
        for module in unwrapped.modules():
            modules += 1
            checkpoints |= getattr(module, "gradient_checkpointing", False) is True
            checkpoints |= type(module).__name__ == "CheckpointWrapper"
    dtypes = {dtype for _, _, dtype, _ in trained}
    facts = describe_parameters(trained)
    if facts:
        facts |= {"model": " + ".join(names), "modules_count": modules}
        facts["precision"] = PRECISIONS.get(dtypes.pop()) if len(dtypes) == 1 else "mixed"
    if checkpoints:
        facts["activation_checkpointing"] = True
    return facts


def _unwrapped(model: Any) -> Any:
    """Return a model without the wrappers of DDP and the compiler."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def _parameters(model: Any, seen: set[int]) -> Iterator[tuple[str, tuple[int, ...], str, int]]:
    """Yield the parameters of a model that no earlier one had."""
    for name, parameter in model.named_parameters():
        if id(parameter) in seen or isinstance(
            parameter, torch.nn.parameter.UninitializedParameter
        ):
            continue
        seen.add(id(parameter))
        dtype = str(parameter.dtype).removeprefix("torch.")
        clean = name.removeprefix("module.").removeprefix("_orig_mod.")
        yield clean, tuple(parameter.shape), dtype, parameter.element_size()


def _describe_optimizers(optimizers: list[Any]) -> Facts:
    if not optimizers:
        return {}
    names, groups = [], []
    for optimizer in optimizers:
        names.append(type(optimizer).__name__)
        groups += optimizer.param_groups
    facts: Facts = {
        "optimizer": " + ".join(sorted(set(names))),
        "optimizers_count": len(optimizers),
        "optimizer_groups": len(groups),
    }
    for option in ("foreach", "fused", "capturable"):
        # `None` is the default, by which torch chooses for itself.
        values = sorted({str(group[option]) for group in groups if option in group})
        if values:
            facts[f"optimizer_{option}"] = ", ".join(values).replace("None", "default")
    return facts


def describe_loader(loader: Any) -> Facts:
    """Return the options of a loader that can change its speed."""
    LAYOUT.note_loader(loader)
    facts = _options(loader, LOADER_OPTIONS)
    if "batch_size" not in facts:
        facts |= _options(getattr(loader, "batch_sampler", None), {"batch_size": "batch_size"})
    return facts


def _options(owner: Any, options: dict[str, str]) -> Facts:
    """Return the options that a loader or a wrapper has, by their names in `run.json`."""
    facts: Facts = {}
    for option, name in options.items():
        value = getattr(owner, option, None)
        if isinstance(value, bool | int):
            facts[name] = value
    return facts
