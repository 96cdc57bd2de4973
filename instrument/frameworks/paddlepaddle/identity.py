"""The description of a job that trains with PaddlePaddle."""

from __future__ import annotations

from typing import Any

import paddle

from profkit.instrument.frameworks.paddlepaddle.layout import describe_layout
from profkit.instrument.guard import guarded
from profkit.instrument.identity import Facts, Seen, describe_parameters

LOADER_OPTIONS = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
    "pin_memory": "pin",
    "use_shared_memory": "loader_shared_memory",
    "use_buffer_reader": "loader_buffer_reader",
}
"""Attributes of `DataLoader`, and their names in `run.json`."""


def describe_thread() -> Facts:
    """Return facts that belong to the calling thread, which trains."""
    return {}


def autocast_dtype() -> str:
    """Return the data type of the mixed precision that is on now."""
    dtype = str(paddle.amp.get_autocast_dtype())
    return {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype)


def describe(seen: Seen, models: list[Any]) -> Facts:
    """Return the facts of a job that trains these models."""
    names, parameters, known = [], [], set()
    layers = 0
    for model in models:
        own = []
        for name, parameter in model.named_parameters():
            if id(parameter) not in known:
                known.add(id(parameter))
                dtype = str(parameter.dtype).removeprefix("paddle.")
                own.append((name, tuple(parameter.shape), dtype, parameter.element_size()))
        if own:
            names.append(type(model).__name__)
            parameters += own
            layers += len(model.sublayers(include_self=True))
    facts = describe_parameters(parameters)
    if facts:
        facts |= {"model": " + ".join(names), "modules_count": layers}
    optimizers = seen.living_optimizers()
    if optimizers:
        facts["optimizer"] = " + ".join(sorted({type(each).__name__ for each in optimizers}))
        facts["optimizers_count"] = len(optimizers)
        variants = {getattr(each, "_use_multi_tensor", None) for each in optimizers}
        if variants <= {True, False}:
            facts["optimizer_multi_tensor"] = ", ".join(sorted(map(str, variants)))
    facts |= seen.loader
    facts |= guarded("identity: layout", describe_layout, {})()
    if seen.precision:
        facts["precision"] = seen.precision
    return facts


def describe_loader(loader: Any) -> Facts:
    """Return the options of a loader that can change its speed."""
    facts: Facts = {}
    for option, name in LOADER_OPTIONS.items():
        value = getattr(loader, option, None)
        if isinstance(value, bool | int):
            facts[name] = value
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if isinstance(size, int):
        facts["batch_size"] = size
    return facts
