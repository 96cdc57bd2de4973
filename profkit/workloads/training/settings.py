"""The final settings of a run, and the checks of what the user asked for."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any

from profkit.errors import UsageError
from profkit.rank import Rank
from profkit.workloads.base import Settings, Workload

PADDLE_AUTOTUNE = "FLAGS_cudnn_exhaustive_search"
"""Paddle's own variable for --autotune; the published runs set it."""

DALI_LOADERS = {"cpu": "DALI", "gpu": "DALI on the GPU"}
"""The name of the loader for each device on which DALI decodes."""


@dataclass(frozen=True)
class Seat:
    """A rank and its GPU, if it has one."""

    rank: Rank = field(default_factory=Rank)
    gpu: int | None = None


def final_config(workload: Workload, settings: Settings, seat: Seat) -> dict[str, Any]:
    """Return every setting in its final value. Depth and width of a model are never reduced."""
    defaults, on_gpu = workload.defaults, seat.gpu is not None
    batch, image = defaults.reduced_batch_size, defaults.reduced_image_size
    steps, warmup = defaults.reduced_steps, defaults.reduced_warmup
    workers = defaults.reduced_workers
    if on_gpu:
        batch, image, steps = defaults.batch_size, defaults.image_size, defaults.steps
        warmup, workers = defaults.warmup, defaults.workers
    batch = settings.batch_size or batch
    image = settings.image_size or image
    steps = settings.steps or steps
    global_batch = batch * seat.rank.world_size
    loader = DALI_LOADERS.get(settings.dali, f"{settings.framework} DataLoader")
    if settings.data == "synthetic":
        loader = "none"
    return {
        "precision": _precision(settings, on_gpu=on_gpu),
        "amp": settings.amp if settings.amp in {"O1", "O2"} else "",
        "device": f"cuda:{seat.gpu}" if on_gpu else "cpu",
        "batch_size": batch,
        "global_batch_size": global_batch,
        "world_size": seat.rank.world_size,
        "rank": seat.rank.number,
        "image_size": image,
        "steps": steps,
        "epochs": settings.epochs if settings.steps is None else None,
        "warmup": warmup if settings.warmup is None else settings.warmup,
        "workers": workers if settings.workers is None else settings.workers,
        "prefetch": settings.prefetch or 2,
        "pin": on_gpu if settings.pin is None else settings.pin,
        "lr": settings.lr or defaults.learning_rate(global_batch),
        "momentum": defaults.momentum,
        "weight_decay": defaults.weight_decay,
        "seed": settings.seed,
        "data": settings.data,
        "loader": loader,
        "bad_samples": settings.bad_samples,
        "memory_format": "NHWC" if settings.channels_last else "NCHW",
        "compile": settings.compile,
        "autotune": on_gpu and _autotunes(workload, settings),
        "evaluate": evaluates(settings),
        "evaluate_every": settings.evaluate_every,
        "checkpoint_every": settings.checkpoint_every,
        "until": settings.until,
        "reduced": _reductions(workload, batch, image),
    }


def _autotunes(workload: Workload, settings: Settings) -> bool:
    """Return if cuDNN searches convolutions: by the option, Paddle's variable or the default."""
    if settings.autotune is not None:
        return settings.autotune
    flag = os.environ.get(PADDLE_AUTOTUNE)
    if settings.framework == "paddle" and flag is not None:
        return flag.lower() in {"1", "true"}
    return workload.defaults.autotune


def evaluates(settings: Settings) -> bool:
    """Return if the model is evaluated: on request, or because a quality figure is the target."""
    target = settings.until.strip()
    by_figure = bool(target) and not target.startswith("loss")
    return settings.evaluate or settings.evaluate_every is not None or by_figure


def _reductions(workload: Workload, batch: int, image: int) -> str:
    """Name the sizes that are below the published ones."""
    defaults, reduced = workload.defaults, []
    if image < defaults.image_size:
        reduced.append(f"images of {image} px (published: {defaults.image_size})")
    if batch < defaults.batch_size:
        published = workload.published.get("batch_size", defaults.batch_size)
        reduced.append(f"batch {batch} (published: {published})")
    return ", ".join(reduced)


def check(workload: Workload, settings: Settings, *, on_gpu: bool) -> None:
    """Refuse what this machine or framework cannot do; never do something else instead."""
    workload.check(settings)
    if settings.pin and not on_gpu:
        raise UsageError("--pin needs a GPU: pinned memory is for copies to one")
    _precision(settings, on_gpu=on_gpu)
    if settings.dali:
        _check_dali(workload, settings, on_gpu=on_gpu)
    if settings.channels_last and settings.framework not in workload.channels_last:
        raise UsageError(
            f"--channels-last: {workload.name} is NCHW in {settings.framework}; "
            f"it works with --framework {workload.channels_last[0]}"
        )
    if settings.autotune and not on_gpu:
        raise UsageError("--autotune needs a GPU: cuDNN is what searches for fast convolutions")
    if settings.checkpoint_every and not settings.checkpoint:
        raise UsageError("--checkpoint-every needs --checkpoint FOLDER")
    if settings.resume and settings.dali:
        raise UsageError(
            "--resume needs the framework's own loader: DALI draws its samples itself, "
            "and cannot continue where it was; leave --dali out"
        )
    if settings.framework == "paddle" and settings.compile:
        raise UsageError(
            "--compile: works with --framework torch; Paddle's static graph is one call, "
            "in which no phases can be told apart"
        )


def _precision(settings: Settings, *, on_gpu: bool) -> str:
    """Return the precision, or refuse one that does not exist here."""
    amp = settings.amp
    if not amp:
        return "fp32"
    if settings.framework == "paddle" and not on_gpu:
        raise UsageError(
            "--amp: Paddle has no mixed precision on a CPU (its autocast does nothing there); "
            "leave --amp out, or use a GPU or --framework torch"
        )
    if amp in {"O1", "O2"} and settings.framework != "paddle":
        raise UsageError(
            f"--amp {amp} is a level of Paddle's; torch takes --amp, --amp bf16 or --amp fp16"
        )
    if amp == "fp16" and not on_gpu:
        raise UsageError(
            "--amp fp16 needs a GPU: fp16 with a gradient scaler does not exist on a CPU; "
            "--amp bf16 does"
        )
    if amp == "bf16" or not on_gpu:
        return "bf16"
    return "fp16"


def _check_dali(workload: Workload, settings: Settings, *, on_gpu: bool) -> None:
    if workload.dali is None:
        raise UsageError(
            f"--dali: {workload.name} has no DALI pipeline; its samples need more than DALI decodes"
        )
    if settings.dali == "gpu" and not on_gpu:
        raise UsageError("--dali gpu needs a GPU to decode on; --dali cpu decodes on the CPU")
    if settings.data == "synthetic":
        raise UsageError(
            "--dali and --data synthetic exclude each other: there is nothing to decode"
        )
    if settings.bad_samples != "error":
        raise UsageError(
            f"--bad-samples {settings.bad_samples} needs the framework's own loader: "
            "DALI ends at a bad sample; leave --dali out"
        )
    if importlib.util.find_spec("nvidia.dali") is None:
        raise UsageError("--dali: NVIDIA DALI is not installed here: pip install 'profkit[dali]'")
