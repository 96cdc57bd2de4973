"""Makes a workload ready to train: final settings, data, model, the framework's driver, the process group."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.instrument.loop_recorder import LoopRecorder
from profkit.text import safe_text
from profkit.workloads.base import Build, Outcome, Parts, Settings, Workload, wait_passively
from profkit.workloads.training.loop import Driver, Plan, Target, Tell, Training
from profkit.workloads.training.samples import BadSamples

RENDEZVOUS_S = 300


@dataclass(frozen=True)
class Seat:
    """Where this process trains: which rank of how many, and on which GPU of its machine, if on any."""

    rank: int = 0
    world_size: int = 1
    gpu: int | None = None


@dataclass(frozen=True)
class ReadyJob:
    """A workload made ready."""

    config: Mapping[str, Any]
    device: str
    _drive: Callable[[], Driver]
    _plan: Plan
    _bad: BadSamples
    _kit: Kit

    def share(self, text: str) -> str:
        """What rank 0 says, on every rank."""
        return self._kit.share(text)

    def train(self, recorder: LoopRecorder, tell: Tell) -> Outcome:
        """Wrapping the model for its ranks is left until here: by now the recorder's hooks are in place."""
        try:
            return Training(self._drive(), self._plan, self._bad, recorder, tell).run()
        finally:
            self._bad.close()
            self._kit.leave()


def prepare(workload: Workload, settings: Settings, seat: Seat) -> ReadyJob:
    """Data there, model built, ranks met; nothing trained yet."""
    wait_passively()
    _share_cores(seat)
    config = final_config(workload, settings, seat)
    target = Target.parse(settings.until)
    root = find_data(workload, settings)
    bad = BadSamples(settings.bad_samples)
    kit = _KITS[settings.framework](config, seat)
    build = Build(config, root, bad)
    parts = workload.builders[settings.framework](build)
    config |= {
        "reduced": "; ".join(
            part for part in (config["reduced"], *_departures(parts, seat)) if part
        ),
        **parts.notes,
    }
    other_loader = workload.dali(build) if settings.dali and workload.dali else None
    plan = _plan(settings, config, parts, target)
    shown = {name: value for name, value in config.items() if name != "rank"} | {
        "steps": plan.steps,
        "threads": kit.threads,
    }
    return ReadyJob(
        shown, config["device"], lambda: kit.drive(parts, config, bad, other_loader), plan, bad, kit
    )


def _departures(parts: Parts, seat: Seat) -> list[str]:
    """Where the builder's own choices, and this machine, depart from the published settings."""
    chosen = [
        f"{name.replace('_', ' ')}: {said}"
        for name, said in parts.notes.items()
        if "(published: " in str(said)
    ]
    alone = (
        parts.sync_bn and seat.world_size > 1 and seat.gpu is None
    )  # neither framework has it on a CPU
    return chosen + ["batch norm of each rank alone (published: over all ranks)"] * alone


def _share_cores(seat: Seat) -> None:
    """Each rank of this machine gets its share of the cores. Paddle would take one thread where it is told nothing."""
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if seat.world_size > 1 else 1
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks_here))
    )


def find_data(workload: Workload, settings: Settings) -> Path | None:
    """The root of the data set's tree: the user's own, or the generated one, made now if need be."""
    if settings.data == "synthetic":
        return None
    if settings.data == "generated":
        return workload.generate()
    path = Path(settings.data)
    if not path.exists():
        raise UnreadableError(
            f"{safe_text(settings.data)}: no such folder; --data takes 'generated', 'synthetic', or the folder of the data set ({workload.data})"
        )
    return path


def final_config(workload: Workload, settings: Settings, seat: Seat) -> dict[str, Any]:
    """Every knob in its final value. Depth and width of a model are never reduced."""
    defaults, on_gpu = workload.defaults, seat.gpu is not None
    batch = settings.batch_size or (defaults.batch_size if on_gpu else defaults.reduced_batch_size)
    image = settings.image_size or (defaults.image_size if on_gpu else defaults.reduced_image_size)
    steps = settings.steps or (defaults.steps if on_gpu else defaults.reduced_steps)
    warmup = (
        min(defaults.warmup if on_gpu else defaults.reduced_warmup, steps // 5)
        if settings.warmup is None
        else settings.warmup
    )
    workers = (
        (defaults.workers if on_gpu else defaults.reduced_workers)
        if settings.workers is None
        else settings.workers
    )
    reduced = [f"images of {image} px (published: {defaults.image_size})"] * (
        image < defaults.image_size
    )
    reduced += [
        f"batch {batch} (published: {workload.published.get('batch_size', defaults.batch_size)})"
    ] * (batch < defaults.batch_size)
    return {
        "precision": _precision(settings, on_gpu=on_gpu),
        "amp": settings.amp if settings.amp in {"O1", "O2"} else "",
        "device": f"cuda:{seat.gpu}" if on_gpu else "cpu",
        "batch_size": batch,
        "global_batch_size": batch * seat.world_size,
        "world_size": seat.world_size,
        "rank": seat.rank,
        "image_size": image,
        "steps": steps,
        "epochs": settings.epochs,
        "warmup": warmup,
        "workers": workers,
        "prefetch": settings.prefetch or 2,
        "pin": on_gpu if settings.pin is None else settings.pin,
        "lr": settings.lr or defaults.lr * batch * seat.world_size / defaults.lr_batch,
        "momentum": defaults.momentum,
        "weight_decay": defaults.weight_decay,
        "seed": settings.seed,
        "data": settings.data,
        "loader": "none"
        if settings.data == "synthetic"
        else "DALI"
        if settings.dali
        else f"{settings.framework} DataLoader",
        "bad_samples": settings.bad_samples,
        "memory_format": "NHWC" if settings.channels_last else "NCHW",
        "compile": settings.compile,
        "evaluate": settings.evaluate,
        "until": settings.until,
        "reduced": ", ".join(reduced),
    }


def check(workload: Workload, settings: Settings, *, on_gpu: bool) -> None:
    """Refuse what this machine or this framework cannot do, before anything is made; never do another thing under the same name."""
    workload.check(settings)
    if settings.pin and not on_gpu:
        raise UsageError("--pin needs a GPU: pinned memory is for copies to one")
    _precision(settings, on_gpu=on_gpu)
    if settings.dali:
        _check_dali(workload, settings)
    if settings.framework == "paddle":
        _check_paddle(settings)


def _precision(settings: Settings, *, on_gpu: bool) -> str:
    amp = settings.amp
    if not amp:
        return "fp32"
    if settings.framework == "paddle" and not on_gpu:
        raise UsageError(
            "--amp: Paddle has no mixed precision on a CPU (its autocast does nothing there); leave --amp out, or use a GPU or --framework torch"
        )
    if amp in {"O1", "O2"} and settings.framework != "paddle":
        raise UsageError(
            f"--amp {amp} is a level of Paddle's; torch takes --amp, --amp bf16 or --amp fp16"
        )
    if amp == "fp16" and not on_gpu:
        raise UsageError(
            "--amp fp16 needs a GPU: fp16 with a gradient scaler does not exist on a CPU; --amp bf16 does"
        )
    if amp == "bf16":
        return "bf16"
    return "fp16" if on_gpu else "bf16"


def _check_paddle(settings: Settings) -> None:
    if settings.channels_last:
        raise UsageError(
            "--channels-last: Paddle's own models here are NCHW; it works with --framework torch"
        )
    if settings.compile:
        raise UsageError(
            "--compile: works with --framework torch; Paddle's static graph is one call, in which no phases can be told apart"
        )


def _check_dali(workload: Workload, settings: Settings) -> None:
    if workload.dali is None:
        raise UsageError(
            f"--dali: {workload.name} has no DALI pipeline; its samples need more than DALI decodes"
        )
    if settings.data == "synthetic":
        raise UsageError(
            "--dali and --data synthetic exclude each other: there is nothing to decode"
        )
    if settings.bad_samples != "error":
        raise UsageError(
            f"--bad-samples {settings.bad_samples} needs the framework's own loader: DALI ends at a bad sample; leave --dali out"
        )
    if importlib.util.find_spec("nvidia.dali") is None:
        raise UsageError("--dali: NVIDIA DALI is not installed here: pip install 'profkit[dali]'")


def _plan(
    settings: Settings, config: Mapping[str, Any], parts: Parts, target: Target | None
) -> Plan:
    steps = config["steps"]
    if settings.epochs and settings.steps is None:
        if parts.dataset is None:
            raise UsageError("--epochs needs a data set; with --data synthetic, say --steps")
        steps = settings.epochs * max(1, len(parts.dataset) // config["global_batch_size"])
    if settings.evaluate and parts.evaluate is None:
        raise UsageError("--evaluate needs a data set with a validation part")
    return Plan(
        steps=steps,
        batch_size=config["batch_size"],
        until=target,
        max_time=settings.max_time,
        stop_at_nan=settings.nan == "stop",
        evaluate=settings.evaluate,
        epoch_ends=settings.epochs is not None,
    )


class Kit(Protocol):
    """A framework, told which device and which seed, and met with its other ranks."""

    threads: int

    def drive(
        self, parts: Parts, config: Mapping[str, Any], bad: BadSamples, other_loader: Any
    ) -> Driver: ...

    def share(self, text: str) -> str:
        """What rank 0 says, on every rank."""

    def leave(self) -> None:
        """Leave the other ranks."""


class _TorchKit:
    """PyTorch."""

    def __init__(self, config: Mapping[str, Any], seat: Seat) -> None:
        import torch

        from profkit.workloads.training.torch_driver import seed_everything

        self._device = torch.device(config["device"])
        self._world_size = seat.world_size
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.init()
        seed_everything(config["seed"])
        if seat.world_size > 1:
            _meet(
                lambda: torch.distributed.init_process_group(
                    "nccl" if self._device.type == "cuda" else "gloo",
                    timeout=dt.timedelta(seconds=RENDEZVOUS_S),
                )
            )
        self.threads = torch.get_num_threads()

    def drive(
        self, parts: Parts, config: Mapping[str, Any], bad: BadSamples, other_loader: Any
    ) -> Driver:
        from profkit.workloads.training.torch_driver import TorchDriver

        return TorchDriver(parts, config, bad, self._device, other_loader)

    def share(self, text: str) -> str:
        import torch

        words = [text]
        if self._world_size > 1:
            torch.distributed.broadcast_object_list(words)
        return words[0]

    def leave(self) -> None:
        import torch

        if self._world_size > 1:
            with contextlib.suppress(Exception):  # the others may be gone already
                torch.distributed.destroy_process_group()


class _PaddleKit:
    """PaddlePaddle."""

    def __init__(self, config: Mapping[str, Any], seat: Seat) -> None:
        import paddle

        from profkit.workloads.training.paddle_driver import seed_everything

        paddle.device.set_device(config["device"].replace("cuda", "gpu"))
        self._world_size = seat.world_size
        if seat.world_size > 1:
            os.environ.setdefault(
                "PADDLE_DISTRI_BACKEND", "nccl" if seat.gpu is not None else "gloo"
            )
            _meet(paddle.distributed.init_parallel_env)
        seed_everything(config["seed"])
        self.threads = int(os.environ["OMP_NUM_THREADS"].split(",")[0])

    def drive(
        self, parts: Parts, config: Mapping[str, Any], bad: BadSamples, other_loader: Any
    ) -> Driver:
        from profkit.workloads.training.paddle_driver import PaddleDriver

        return PaddleDriver(parts, config, bad, other_loader)

    def share(self, text: str) -> str:
        import paddle

        words = [text]
        if self._world_size > 1:
            paddle.distributed.broadcast_object_list(words, src=0)
        return words[0]

    def leave(self) -> None:
        import paddle

        if self._world_size > 1:
            with contextlib.suppress(Exception):  # the others may be gone already
                paddle.distributed.destroy_process_group()


_KITS: Mapping[str, Callable[[dict[str, Any], Seat], Kit]] = {
    "torch": _TorchKit,
    "paddle": _PaddleKit,
}


def _meet(join: Callable[[], object]) -> None:
    """Form the process group; who cannot be reached is told."""
    try:
        join()
    except Exception as error:  # each framework's store and backend raise classes of their own
        place = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise ProfkitError(
            f"the ranks could not meet at {place}: {' '.join(str(error).split())[:200]}"
        ) from error


def _quieten_paddle() -> None:
    """Leave out what Paddle warns of at every start, and nobody here can do anything about."""
    for words in ("No ccache found", "When training, we now always track"):
        warnings.filterwarnings("ignore", message=words)


def gpu_count(framework: str) -> int:
    """How many GPUs the framework can use here; asking initialises none."""
    if framework == "torch":
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    _quieten_paddle()
    import paddle

    return paddle.device.cuda.device_count() if paddle.device.is_compiled_with_cuda() else 0
