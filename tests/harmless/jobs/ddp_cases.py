"""Many small jobs of data parallel training, each reduced to one digest of its results.

Runs under torchrun with two or three ranks (gloo, CPU) and does not know any profiler. Each rank
writes a line of JSON per case into its own file. Two launches that should behave alike must write
the same lines.
"""

import argparse
import copy
import functools
import gc
import hashlib
import inspect
import io
import json
import pickle
import random
import re
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket, Store
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist: Any = distributed  # the types of much of it are unknown
PATIENCE = timedelta(seconds=40)  # what a rank waits for its peers within a case
LONG_PATIENCE = timedelta(seconds=150)  # and between cases
SMALL_BUCKETS = 0.01  # MiB: the model below has several of them
INPUTS, WIDTH, OUTPUTS, ROWS = 12, 64, 4, 8


class Evidence:
    """The results of a case: names and texts in the order in which they came."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, str]] = []

    def add(self, name: str, value: object) -> None:
        self.parts.append((name, shown(value)))

    def add_attempt(self, name: str, action: Callable[[], object]) -> None:
        """Note the error of an action, or that there was none."""
        try:
            action()
        except Exception as error:  # noqa: BLE001
            self.add(name, told(error))
        else:
            self.add(name, "no error")

    def add_module(self, name: str, module: nn.Module) -> None:
        """Note each parameter, its gradient, and each buffer."""
        for key, parameter in module.named_parameters():
            self.add(f"{name} {key}", parameter)
            self.add(f"{name} {key} gradient", parameter.grad)
        for key, buffer in module.named_buffers():
            self.add(f"{name} {key}", buffer)

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()


Case = Callable[[int, int], Evidence]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Register a function as the case of that name."""

    def register(function: Case) -> Case:
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = function
        return function

    return register


def shown(value: object) -> str:
    """A text that is equal for equal values only, down to the last bit of a float."""
    if isinstance(value, torch.Tensor):
        return tensor_text(value)
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    if value is None or isinstance(value, str | int | torch.dtype | torch.device):
        return str(value)
    raise TypeError(f"no text for {type(value).__name__}")


def tensor_text(tensor: torch.Tensor) -> str:
    if tensor.is_sparse:
        held = tensor.detach()
        inner = (tensor_text(held._indices()), tensor_text(held._values()))
        return f"sparse {tuple(tensor.shape)} {inner[0]} {inner[1]}"
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {digest}"


def told(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {without_addresses(lines[0])}"


def without_addresses(text: str) -> str:
    """The text without addresses of memory and numbers of ports."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x", re.sub(r"\]:\d+", "]:", text))


class Meeting:
    """The meeting point of the ranks, independent of the process group of a case."""

    def __init__(self, store: Store, rank: int, world: int, folder: Path) -> None:
        store.set_timeout(LONG_PATIENCE)
        self.store = store
        self.rank = rank
        self.world = world
        self.folder = folder
        self.prefix = "first"
        self.count = 0

    def begin(self, prefix: str) -> None:
        self.prefix = prefix
        self.count = 0

    def meet(self, word: str = "") -> list[str]:
        """Wait until all ranks are here; returns what each of them said."""
        self.count += 1
        point = f"{self.prefix}/{self.count}"
        self.store.set(f"{point}/{self.rank}", word)
        return [self.store.get(f"{point}/{rank}").decode() for rank in range(self.world)]

    def close(self) -> None:
        """Destroy the process group once every rank is done with it."""
        self.meet()
        gc.collect()
        dist.destroy_process_group()
        self.meet()
        time.sleep(0.05)

    def open(self) -> None:
        """Make a default process group in which nothing has happened yet."""
        prefix = f"{self.prefix}/group/{self.count}"
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(prefix, self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=PATIENCE,
        )
        self.meet()

    def reopen(self) -> None:
        self.close()
        self.open()


class Held:
    """The meeting of this process."""

    meeting: Meeting


class Net(nn.Module):
    """Four layers, of which batch norm is one if wanted."""

    def __init__(self, norm: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.second = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(inputs)))
        hidden = self.dropout(torch.relu(self.second(hidden)))
        return self.last(torch.relu(self.third(hidden)))  # type: ignore[no-any-return]


class Branches(nn.Module):
    """A trunk and three branches; a call uses those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(INPUTS, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: torch.Tensor, used: tuple[int, ...]) -> torch.Tensor:
        hidden = torch.relu(self.trunk(inputs))
        total = hidden
        for number in used:
            total = total + torch.tanh(self.branches[number](hidden))
        return self.last(total)  # type: ignore[no-any-return]


class Outer(nn.Module):
    """A module of which only a part is data parallel."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.front = nn.Linear(INPUTS, INPUTS)
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.tanh(self.front(inputs)))  # type: ignore[no-any-return]


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of a rank in a step: no two are alike."""
    source = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(ROWS, INPUTS, generator=source)
    return inputs, torch.randn(ROWS, OUTPUTS, generator=source)


class Run:
    """A model that is trained step by step, with the evidence of each step."""

    def __init__(self, rank: int, model: nn.Module | None = None, **options: Any) -> None:
        self.rank = rank
        self.evidence = Evidence()
        self.at = 0
        self.arguments: tuple[Any, ...] = ()
        self.wrap(Net() if model is None else model, **options)

    def wrap(self, model: nn.Module, **options: Any) -> None:
        """Make the module data parallel, with an optimizer of its own."""
        self.use(DistributedDataParallel(model, **{"bucket_cap_mb": SMALL_BUCKETS, **options}))

    def use(self, module: Any) -> None:
        """Train that module from here on, data parallel or not."""
        self.ddp = module
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.ddp.parameters(),
            lr=0.05,
            momentum=0.9,
        )

    def loss(self) -> torch.Tensor:
        inputs, wanted = batch(self.rank, self.at)
        return functional.mse_loss(self.ddp(inputs, *self.arguments), wanted)

    def update(self, loss: torch.Tensor) -> None:
        """Note loss and gradients of a step, and apply them."""
        self.evidence.add(f"step {self.at} loss", loss)
        self.evidence.add(
            f"step {self.at} gradients",
            [parameter.grad for parameter in self.ddp.parameters()],
        )
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.at += 1
            loss = self.loss()
            loss.backward()
            self.update(loss)

    def try_steps(self, count: int = 1) -> None:
        """Train as long as no error comes, and note the error."""
        self.evidence.add_attempt(f"after step {self.at}", lambda: self.step(count))

    def done(self) -> Evidence:
        self.evidence.add_module("end", self.ddp)
        return self.evidence


def plain_training(rank: int, module: Any, evidence: Evidence, name: str, start: int = 50) -> None:
    """Train any module for two steps, without a peer unless it has some of its own."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(start, start + 2):
        inputs, wanted = batch(rank, step)
        loss = functional.mse_loss(module(inputs), wanted)
        loss.backward()
        evidence.add(f"{name} loss {step}", loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    module.eval()
    with torch.no_grad():
        evidence.add(f"{name} output", module(batch(rank, 99)[0]))
    module.train()
    evidence.add_module(name, module)


def hooks_of(ddp: Any) -> list[tuple[str, str]]:
    return [(hook.__qualname__, type(state).__name__) for hook, state in ddp._comm_hooks]


# Plain training.


@case("plain")
def plain(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(5)
    return run.done()


@case("plain_with_default_buckets")
def plain_with_default_buckets(rank: int, world: int) -> Evidence:
    run = Run(rank, bucket_cap_mb=None)
    run.step(5)
    return run.done()


@case("plain_data_loader")
def plain_data_loader(rank: int, world: int) -> Evidence:
    return with_loader(rank, world, workers=0)


@case("data_loader_with_a_worker")
def data_loader_with_a_worker(rank: int, world: int) -> Evidence:
    return with_loader(rank, world, workers=1)


def with_loader(rank: int, world: int, workers: int) -> Evidence:
    run = Run(rank, Net(dropout=0.2))
    data = TensorDataset(torch.randn(16 * world, INPUTS), torch.randn(16 * world, OUTPUTS))
    sampler: DistributedSampler[Any] = DistributedSampler(data, world, rank, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, wanted in loader:
            run.at += 1
            loss = functional.mse_loss(run.ddp(inputs), wanted)
            loss.backward()
            run.update(loss)
    return run.done()


@case("dropout_and_schedule")
def dropout_and_schedule(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(dropout=0.3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, T_max=5)
    for _ in range(5):
        run.step()
        schedule.step()
        run.evidence.add("rate", schedule.get_last_lr())
    return run.done()


@case("evaluation_between_steps")
def evaluation_between_steps(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for number in range(4):
        run.step()
        run.ddp.eval()
        with torch.inference_mode() if number % 2 else torch.no_grad():
            run.evidence.add("evaluation", run.ddp(batch(rank, 90 + number)[0]))
        run.ddp.train()
        with torch.no_grad():
            run.evidence.add("forward alone", run.ddp(batch(rank, 80 + number)[0]))
    return run.done()


@case("clip_grad_norm")
def clip_grad_norm(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(5):
        run.at += 1
        loss = run.loss()
        loss.backward()
        run.evidence.add("norm", nn.utils.clip_grad_norm_(run.ddp.parameters(), 0.5))
        nn.utils.clip_grad_value_(run.ddp.parameters(), 0.05)
        run.update(loss)
    return run.done()


@case("adamw_foreach")
def adamw_foreach(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.optimizer = torch.optim.AdamW(run.ddp.parameters(), lr=0.01, foreach=True)
    run.step(5)
    return run.done()


@case("lbfgs_closure")
def lbfgs_closure(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False))
    optimizer = torch.optim.LBFGS(run.ddp.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        run.evidence.add("loss", loss)
        return loss

    for _ in range(3):
        run.at += 1
        optimizer.step(closure)
    return run.done()


@case("zero_grad_keeps_gradients")
def zero_grad_keeps_gradients(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(5):
        run.at += 1
        run.optimizer.zero_grad(set_to_none=False)
        loss = run.loss()
        loss.backward()
        run.evidence.add("gradients", [parameter.grad for parameter in run.ddp.parameters()])
        run.optimizer.step()
    return run.done()


@case("autocast_and_scaler")
def autocast_and_scaler(rank: int, world: int) -> Evidence:
    run = Run(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for _ in range(5):
        run.at += 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inputs, wanted = batch(rank, run.at)
            loss = functional.mse_loss(run.ddp(inputs).float(), wanted)
        scaler.scale(loss).backward()
        run.evidence.add("loss", loss)
        scaler.unscale_(run.optimizer)
        scaler.step(run.optimizer)
        scaler.update()
        run.evidence.add("scale", scaler.get_scale())
        run.optimizer.zero_grad()
    return run.done()


@case("trained_in_a_thread")
def trained_in_a_thread(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    thread = threading.Thread(target=run.try_steps, args=(2,))
    thread.start()
    thread.join()
    run.step()
    return run.done()


# Copies.


@case("deepcopy")
def deepcopy_of_ddp(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    twin = copy.deepcopy(run.ddp)
    plain_training(rank, twin.module, run.evidence, "copy's module")
    run.step(3)
    return run.done()


@case("deepcopy_before_the_first_step")
def deepcopy_before_the_first_step(rank: int, world: int) -> Evidence:
    run = Run(rank)
    twin = copy.deepcopy(run.ddp)
    run.step(3)
    plain_training(rank, twin, run.evidence, "copy")
    return run.done()


@case("deepcopy_goes_on_as_ddp")
def deepcopy_goes_on_as_ddp(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    twin = copy.deepcopy(run.ddp)
    for part in range(2):
        plain_training(rank, twin, run.evidence, f"copy {part}")
        run.step(2)
    run.evidence.add("copy has", sorted(vars(twin)))
    run.evidence.add("copy's hooks", hooks_of(twin))
    return run.done()


@case("deepcopy_of_a_deepcopy")
def deepcopy_of_a_deepcopy(rank: int, world: int) -> Evidence:
    run = Run(rank, gradient_as_bucket_view=True)
    run.step(2)
    twin = copy.deepcopy(run.ddp)
    plain_training(rank, twin, run.evidence, "copy")
    third = copy.deepcopy(twin)
    plain_training(rank, third, run.evidence, "copy of the copy")
    run.step(2)
    return run.done()


@case("deepcopy_with_gradients")
def deepcopy_with_gradients(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.loss().backward()
    twin = copy.deepcopy(run.ddp)
    run.evidence.add_module("copy", twin)
    plain_training(rank, twin, run.evidence, "copy")
    run.step(2)
    return run.done()


@case("deepcopy_of_a_static_graph")
def deepcopy_of_a_static_graph(rank: int, world: int) -> Evidence:
    run = Run(rank, static_graph=True)
    run.step(3)
    twin = copy.deepcopy(run.ddp)
    run.evidence.add_attempt(
        "copy",
        lambda: plain_training(rank, twin, run.evidence, "copy of static"),
    )
    run.step(2)
    return run.done()


@case("deepcopy_inside_a_bigger_module")
def deepcopy_inside_a_bigger_module(rank: int, world: int) -> Evidence:
    run = Run(rank)
    outer = Outer(run.ddp)
    plain_training(rank, outer, run.evidence, "outer")
    twin = copy.deepcopy(outer)
    plain_training(rank, twin, run.evidence, "copy")
    plain_training(rank, outer, run.evidence, "outer again", start=60)
    return run.done()


@case("shallow_copy")
def shallow_copy(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    twin = copy.copy(run.ddp)
    run.evidence.add("copy has", sorted(vars(twin)))
    run.evidence.add("same module", twin.module is run.ddp.module)
    del twin
    gc.collect()
    run.try_steps(2)
    return run.done()


@case("deepcopy_of_model_and_optimizer")
def deepcopy_of_model_and_optimizer(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.ddp, run.optimizer = copy.deepcopy((run.ddp, run.optimizer))
    run.step(3)
    return run.done()


@case("pickle")
def pickle_of_ddp(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    twin = pickle.loads(pickle.dumps(run.ddp))
    plain_training(rank, twin.module, run.evidence, "copy's module")
    plain_training(rank, twin, run.evidence, "copy")
    run.step(2)
    return run.done()


@case("what_is_pickled")
def what_is_pickled(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.evidence.add("state before", sorted(run.ddp.__getstate__()))
    run.step(3)
    run.evidence.add("state", sorted(run.ddp.__getstate__()))
    raw = pickle.dumps(run.ddp)
    run.evidence.add("names of tools", len(set(re.findall(rb"profkit|instrument", raw))))
    reduced = run.ddp.__reduce_ex__(4)
    run.evidence.add("reduced", [len(reduced), reduced[0].__qualname__])
    return run.done()


@case("torch_save_to_a_file")
def torch_save_to_a_file(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    path = Held.meeting.folder / f"saved{rank}.pt"
    torch.save(run.ddp, path)
    twin = torch.load(path, weights_only=False)
    path.unlink()
    plain_training(rank, twin.module, run.evidence, "copy's module")
    plain_training(rank, twin, run.evidence, "copy")
    run.step(2)
    return run.done()


@case("torch_save_of_everything")
def torch_save_of_everything(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    buffer = io.BytesIO()
    torch.save({"model": run.ddp, "optimizer": run.optimizer, "step": run.at}, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=False)
    run.ddp, run.optimizer = found["model"], found["optimizer"]
    run.step(3)
    return run.done()


@case("state_dict")
def state_dict_round_trip(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(3)
    buffer = io.BytesIO()
    kept = {"model": run.ddp.state_dict(), "optimizer": run.optimizer.state_dict()}
    run.evidence.add("keys", list(kept["model"]))
    torch.save(kept, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=True)
    run.step(2)
    run.evidence.add_module("before", run.ddp)
    run.wrap(Net())
    run.evidence.add("loaded", str(run.ddp.load_state_dict(found["model"])))
    run.optimizer.load_state_dict(found["optimizer"])
    run.at = 3
    run.step(3)
    return run.done()


@case("distributed_state_dict")
def distributed_state_dict(rank: int, world: int) -> Evidence:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    run = Run(rank)
    run.step(3)
    model_state, optimizer_state = get_state_dict(run.ddp, run.optimizer)
    run.evidence.add("keys", list(model_state))
    run.evidence.add("values", [value for _, value in sorted(model_state.items())])
    run.wrap(Net())
    set_state_dict(
        run.ddp,
        run.optimizer,
        model_state_dict=model_state,
        optim_state_dict=optimizer_state,
    )
    run.step(2)
    return run.done()


@case("ema_by_hand")
def ema_by_hand(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step()
    ema = copy.deepcopy(run.ddp).eval().requires_grad_(requires_grad=False)
    for number in range(4):
        run.step()
        with torch.no_grad():
            for mean, parameter in zip(ema.parameters(), run.ddp.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
            for mean, buffer in zip(ema.buffers(), run.ddp.buffers(), strict=True):
                mean.copy_(buffer)
            run.evidence.add("mean's output", ema(batch(rank, 70 + number)[0]))
    run.evidence.add_module("mean", ema)
    return run.done()


@case("averaged_model")
def averaged_model(rank: int, world: int) -> Evidence:
    from torch.optim.swa_utils import AveragedModel, update_bn

    run = Run(rank)
    run.step()
    mean = AveragedModel(run.ddp)
    for number in range(4):
        run.step()
        mean.update_parameters(run.ddp)
        with torch.no_grad():
            run.evidence.add("mean's output", mean(batch(rank, 70 + number)[0]))
    update_bn([batch(rank, number)[0] for number in range(60, 63)], mean)
    run.evidence.add_module("mean", mean)
    return run.done()


@case("averaged_model_ema")
def averaged_model_ema(rank: int, world: int) -> Evidence:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    run = Run(rank)
    run.step(2)
    rate = get_ema_multi_avg_fn(0.9)
    mean = AveragedModel(run.ddp, multi_avg_fn=rate, use_buffers=True)
    inner = AveragedModel(run.ddp.module, multi_avg_fn=rate, use_buffers=True)
    for _ in range(3):
        run.step()
        mean.update_parameters(run.ddp)
        inner.update_parameters(run.ddp.module)
    run.evidence.add_module("mean", mean)
    run.evidence.add_module("inner mean", inner)
    return run.done()


# Join.


def joined(rank: int, divide: bool, **options: Any) -> Evidence:
    run = Run(rank, **options)
    run.step(2)
    with run.ddp.join(divide_by_initial_world_size=divide):
        run.step(2 + rank)
    run.at = 20
    run.step(2)
    return run.done()


@case("join_divides_by_the_first_world_size")
def join_divides_by_the_first_world_size(rank: int, world: int) -> Evidence:
    return joined(rank, divide=True)


@case("join_divides_by_those_still_there")
def join_divides_by_those_still_there(rank: int, world: int) -> Evidence:
    return joined(rank, divide=False)


@case("join_with_bucket_views")
def join_with_bucket_views(rank: int, world: int) -> Evidence:
    return joined(rank, divide=False, gradient_as_bucket_view=True)


@case("join_with_unused_parameters")
def join_with_unused_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches(), find_unused_parameters=True)
    run.arguments = ((rank % 3, 2),)
    run.step(2)
    for divide in (True, False):
        with run.ddp.join(divide_by_initial_world_size=divide):
            run.step(1 + 2 * rank)
    return run.done()


@case("join_from_the_first_step")
def join_from_the_first_step(rank: int, world: int) -> Evidence:
    run = Run(rank)
    with run.ddp.join(divide_by_initial_world_size=False):
        run.step(4 - rank)
    return run.done()


@case("join_twice")
def join_twice(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False))
    for divide in (False, True, False):
        with run.ddp.join(divide_by_initial_world_size=divide):
            run.step(1 + (rank + run.at) % 3)
    return run.done()


@case("join_not_enabled")
def join_not_enabled(rank: int, world: int) -> Evidence:
    run = Run(rank)
    with run.ddp.join(enable=False):
        run.step(4)
    return run.done()


@case("join_ends_early")
def join_ends_early(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)

    def uneven() -> None:
        with run.ddp.join(throw_on_early_termination=True):
            run.step(2 + rank)

    run.evidence.add_attempt("join", uneven)
    return run.done()


@case("join_of_several_modules")
def join_of_several_modules(rank: int, world: int) -> Evidence:
    from torch.distributed.algorithms.join import Join

    return joined_modules(rank, divide=True, context=Join)


@case("join_of_several_modules_divided_by_those_there")
def join_of_several_modules_divided_by_those_there(rank: int, world: int) -> Evidence:
    from torch.distributed.algorithms.join import Join

    return joined_modules(rank, divide=False, context=Join)


def joined_modules(rank: int, divide: bool, context: Any) -> Evidence:
    run = Run(rank)
    other = Run(rank, Net(norm=False))
    run.step()
    other.step()
    with context([run.ddp, other.ddp], divide_by_initial_world_size=divide):
        for _ in range(2 + rank):
            run.step()
            other.step()
    run.evidence.parts += other.done().parts
    return run.done()


@case("join_with_zero_redundancy")
def join_with_zero_redundancy(rank: int, world: int) -> Evidence:
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    run = Run(rank)
    optimizer = ZeroRedundancyOptimizer(run.ddp.parameters(), torch.optim.Adam, lr=0.01)
    run.optimizer = optimizer
    run.step()
    with Join([run.ddp, optimizer]):
        run.step(1 + rank)
    return run.done()


@case("join_with_a_user_hook")
def join_with_a_user_hook(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    run.step(2)
    with run.ddp.join():
        run.step(1 + rank)
    return run.done()


# Options of the wrapper.


def accumulated(run: Run, micro: int = 3, count: int = 3) -> Evidence:
    """Several backward passes to a step, of which the last one is synchronised."""
    for number in range(count):
        for part in range(micro):
            run.at += 1
            last = part == micro - 1
            with nullcontext() if last else run.ddp.no_sync():
                loss = run.loss() / micro
                loss.backward()
            run.evidence.add(
                f"gradients {number} {part}",
                [each.grad for each in run.ddp.parameters()],
            )
        run.update(loss)
    return run.done()


@case("no_sync")
def no_sync(rank: int, world: int) -> Evidence:
    return accumulated(Run(rank))


@case("no_sync_with_bucket_views")
def no_sync_with_bucket_views(rank: int, world: int) -> Evidence:
    return accumulated(Run(rank, gradient_as_bucket_view=True))


@case("no_sync_with_static_graph")
def no_sync_with_static_graph(rank: int, world: int) -> Evidence:
    run = Run(rank, static_graph=True)
    run.step(2)
    return accumulated(run)


@case("no_sync_with_unused_parameters")
def no_sync_with_unused_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches(), find_unused_parameters=True)
    run.arguments = ((rank % 3,),)
    return accumulated(run)


@case("no_sync_around_forward_alone")
def no_sync_around_forward_alone(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    for _ in range(2):
        run.at += 1
        with run.ddp.no_sync():
            loss = run.loss()
        loss.backward()
        run.update(loss)
        run.at += 1
        loss = run.loss()
        with run.ddp.no_sync():
            loss.backward()
        run.update(loss)
    return run.done()


@case("no_sync_by_attribute")
def no_sync_by_attribute(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        for last in (False, True):
            run.at += 1
            run.ddp.require_backward_grad_sync = last
            loss = run.loss()
            loss.backward()
        run.update(loss)
    return run.done()


@case("static_graph")
def static_graph(rank: int, world: int) -> Evidence:
    run = Run(rank, static_graph=True)
    run.step(5)
    return run.done()


@case("static_graph_with_unused_parameters")
def static_graph_with_unused_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches(), static_graph=True)
    run.arguments = ((1,),)
    run.step(5)
    return run.done()


@case("static_graph_set_later")
def static_graph_set_later(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.ddp._set_static_graph()
    run.step(4)
    run.ddp._set_static_graph()
    run.step()
    other = Run(rank)
    other.step(2)
    other.evidence.add_attempt("set after steps", other.ddp._set_static_graph)
    other.try_steps(2)
    run.evidence.parts += other.done().parts
    return run.done()


@case("static_graph_with_checkpoints")
def static_graph_with_checkpoints(rank: int, world: int) -> Evidence:
    run = Run(rank, Checkpointed(reentrant=True), static_graph=True)
    run.step(4)
    return run.done()


@case("checkpoints")
def checkpoints(rank: int, world: int) -> Evidence:
    run = Run(rank, Checkpointed(reentrant=False))
    run.step(4)
    return run.done()


class Checkpointed(nn.Module):
    """A model that computes its middle twice instead of keeping it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.front = nn.Linear(INPUTS, INPUTS)
        self.middle = Net(norm=False, dropout=0.2)

    def forward(self, inputs: torch.Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.middle, self.front(inputs), use_reentrant=self.reentrant)


@case("bucket_views")
def bucket_views(rank: int, world: int) -> Evidence:
    run = Run(rank, gradient_as_bucket_view=True)
    for _ in range(4):
        run.at += 1
        loss = run.loss()
        loss.backward()
        run.evidence.add("places", places_of_gradients(run.ddp))
        run.update(loss)
    run.optimizer.zero_grad(set_to_none=False)
    run.step()
    return run.done()


@case("places_of_gradients")
def places_without_views(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        run.at += 1
        loss = run.loss()
        loss.backward()
        run.evidence.add("places", places_of_gradients(run.ddp))
        run.update(loss)
    return run.done()


def places_of_gradients(module: nn.Module) -> list[tuple[object, ...]]:
    """Return the memory layout of each gradient, and the gradients that share memory."""
    found: list[tuple[object, ...]] = []
    seen: dict[int, int] = {}
    for parameter in module.parameters():
        gradient = parameter.grad
        if gradient is None:
            found.append(())
            continue
        held = gradient.untyped_storage()
        number = seen.setdefault(held.data_ptr(), len(seen))
        is_view = gradient._base is not None
        found.append((number, gradient.storage_offset(), held.nbytes(), gradient.stride(), is_view))
    return found


def with_branches(rank: int, **options: Any) -> Evidence:
    """Branches that differ with rank and step; in some steps one is used by no rank."""
    run = Run(rank, Branches(), **{"find_unused_parameters": True, **options})
    for used in ((rank % 3,), (0, 1), (rank % 2, 2), (), ((rank + 1) % 3,), (2,)):
        run.arguments = (used,)
        run.step()
    return run.done()


@case("unused_parameters")
def unused_parameters(rank: int, world: int) -> Evidence:
    return with_branches(rank)


@case("unused_parameters_with_bucket_views")
def unused_parameters_with_bucket_views(rank: int, world: int) -> Evidence:
    return with_branches(rank, gradient_as_bucket_view=True)


@case("unused_parameters_with_skipping")
def unused_parameters_with_skipping(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
    for used in ((1,), (0, 1), (2,), ()):  # every rank has to skip the same buckets
        run.arguments = (used,)
        run.step()
    return run.done()


@case("unused_parameters_in_one_bucket")
def unused_parameters_in_one_bucket(rank: int, world: int) -> Evidence:
    return with_branches(rank, bucket_cap_mb=None)


@case("unused_parameters_found_for_nothing")
def unused_parameters_found_for_nothing(rank: int, world: int) -> Evidence:
    run = Run(rank, find_unused_parameters=True, gradient_as_bucket_view=True)
    run.step(4)
    return run.done()


@case("unused_parameters_unannounced")
def unused_parameters_unannounced(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches())
    run.arguments = ((0, 1, 2),)
    run.step(2)
    run.arguments = ((0, 2),)
    run.try_steps(2)
    return run.done()


@case("unused_parameters_and_static_graph_and_bucket_views")
def unused_parameters_and_static_graph_and_bucket_views(rank: int, world: int) -> Evidence:
    run = Run(
        rank,
        Branches(),
        find_unused_parameters=True,
        static_graph=True,
        gradient_as_bucket_view=True,
    )
    run.arguments = ((0, 2),)
    run.step(5)
    return run.done()


@case("no_buffers_broadcast")
def no_buffers_broadcast(rank: int, world: int) -> Evidence:
    run = Run(rank, broadcast_buffers=False)
    run.step(4)
    return run.done()


@case("buffers_broadcast_forward_alone")
def buffers_broadcast_forward_alone(rank: int, world: int) -> Evidence:
    run = Run(rank, forward_sync_buffers=False)
    run.step(2)
    run.ddp.broadcast_buffers = True
    run.step(2)
    return run.done()


@case("buffer_hook")
def buffer_hook(rank: int, world: int) -> Evidence:
    run = Run(rank)
    seen: list[str] = []

    def average(state: Any, buffers: dict[str, torch.Tensor]) -> list[Any]:
        """Average at once: what is still under way when backward starts is a race in torch."""
        seen.extend(buffers)
        for buffer in buffers.values():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer.div_(world)
        return []

    run.ddp._register_buffer_comm_hook(None, average)
    run.step(4)
    run.evidence.add("seen", seen)
    return run.done()


@case("no_first_synchronisation")
def no_first_synchronisation(rank: int, world: int) -> Evidence:
    run = Run(rank, init_sync=False)
    run.step(4)
    return run.done()


@case("list_of_bucket_sizes")
def list_of_bucket_sizes(rank: int, world: int) -> Evidence:
    run = Run(rank, bucket_cap_mb=None, bucket_cap_mb_list=[0.005, 0.02, 0.02])
    run.step(4)
    return run.done()


@case("batched_copy_and_lazy_buckets")
def batched_copy_and_lazy_buckets(rank: int, world: int) -> Evidence:
    run = Run(rank, batched_grad_copy=True, lazy_bucket_allocation=True)
    run.step(4)
    other = Run(rank, batched_grad_copy=True)
    other.step(4)
    run.evidence.parts += other.done().parts
    return run.done()


@case("finalized_by_hand")
def finalized_by_hand(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step()
    run.ddp.require_manual_backward_finalization = True
    for _ in range(3):
        run.at += 1
        loss = run.loss()
        run.evidence.add("finalize after", run.ddp.should_finalize_after_backward)
        loss.backward()
        run.ddp.finalize_backward()
        run.update(loss)
    run.ddp.require_manual_backward_finalization = False
    run.step()
    return run.done()


@case("device_mesh")
def device_mesh(rank: int, world: int) -> Evidence:
    from torch.distributed.device_mesh import init_device_mesh

    run = Run(rank, device_mesh=init_device_mesh("cpu", (world,)))
    run.step(4)
    return run.done()


@case("ignored_parameters")
def ignored_parameters(rank: int, world: int) -> Evidence:
    model = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model,
        ["third.weight", "norm.running_mean"],
    )
    run = Run(rank, model)
    run.step(4)
    return run.done()


@case("frozen_parameters")
def frozen_parameters(rank: int, world: int) -> Evidence:
    model = Net()
    model.second.requires_grad_(requires_grad=False)
    run = Run(rank, model)
    run.step(4)
    return run.done()


@case("frozen_later")
def frozen_later(rank: int, world: int) -> Evidence:
    run = Run(rank, find_unused_parameters=True)
    run.step(2)
    run.ddp.module.second.requires_grad_(requires_grad=False)
    run.try_steps(2)
    run.ddp.module.second.requires_grad_(requires_grad=True)
    run.try_steps(2)
    return run.done()


# No case uses `delay_all_reduce_named_params`: torch starts that all-reduce and never waits for it,
# so two bare runs differ now and then.


@case("optimizer_in_backward")
def optimizer_in_backward(rank: int, world: int) -> Evidence:
    from torch.distributed.optim.apply_optimizer_in_backward import (
        _apply_optimizer_in_backward,
    )

    model = Net()
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.05})
    run = Run(rank, model)
    for _ in range(4):
        run.at += 1
        loss = run.loss()
        loss.backward()
        run.evidence.add("loss", loss)
        run.evidence.add("weights", list(run.ddp.parameters()))
    return run.done()


@case("fused_optimizer_hook")
def fused_optimizer_hook(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.ddp._register_fused_optim(torch.optim.SGD, 0.05)
    run.evidence.add("hooks", len(run.ddp._comm_hooks))
    for _ in range(4):
        run.at += 1
        loss = run.loss()
        loss.backward()
        run.evidence.add("loss", loss)
        run.evidence.add("weights", list(run.ddp.parameters()))
    return run.done()


@case("mixed_precision")
def mixed_precision(rank: int, world: int) -> Evidence:
    from torch.nn.parallel.distributed import _MixedPrecision

    kept = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    run = Run(rank, Net(norm=False), mixed_precision=kept)
    run.step(4)
    return run.done()


@case("zero_redundancy_optimizer")
def zero_redundancy_optimizer(rank: int, world: int) -> Evidence:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    run = Run(rank)
    optimizer = ZeroRedundancyOptimizer(
        run.ddp.parameters(),
        torch.optim.Adam,
        parameters_as_bucket_view=True,
        lr=0.01,
    )
    run.optimizer = optimizer
    run.step(4)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        run.evidence.add("state", str(sorted(optimizer.state_dict())))
    run.step()
    return run.done()


@case("zero_redundancy_in_the_hook")
def zero_redundancy_in_the_hook(rank: int, world: int) -> Evidence:
    from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
    from torch.distributed.optim import ZeroRedundancyOptimizer

    run = Run(rank, static_graph=True)
    optimizer = ZeroRedundancyOptimizer(
        run.ddp.parameters(),
        torch.optim.SGD,
        overlap_with_ddp=True,
        lr=0.01,
    )
    run.evidence.add_attempt(
        "hook",
        lambda: run.ddp.register_comm_hook(
            None,
            hook_with_zero_step(default_hooks.allreduce_hook, run.ddp, optimizer),
        ),
    )
    run.step(3)
    return run.done()


# Hooks of the user.


class Watcher:
    """A hook written by hand; it keeps what it was given."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.seen: list[object] = []

    def average(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average the bucket, slightly weighted by its number."""
        self.seen.append(
            (
                bucket.index(),
                bucket.is_last(),
                [tuple(parameter.shape) for parameter in bucket.parameters()],
                bucket.buffer(),
                [tuple(gradient.shape) for gradient in bucket.gradients()],
            ),
        )
        shared = bucket.buffer().div_(self.world + 0.01 * bucket.index())
        work: Any = dist.all_reduce(shared, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(first_value)
        return future


def first_value(future: Any) -> torch.Tensor:
    value: torch.Tensor = future.value()[0]
    return value


def hooked(rank: int, hook: Any, state: object = None, before: int = 0, **options: Any) -> Run:
    """A run whose user registers a hook after so many steps, and trains on."""
    run = Run(rank, **options)
    run.evidence.add("hooks at first", hooks_of(run.ddp))
    run.step(before)
    run.evidence.add("hooks before", hooks_of(run.ddp))
    run.ddp.register_comm_hook(state, hook)
    run.evidence.add("hooks", hooks_of(run.ddp))
    run.step(4)
    run.evidence.add("hooks after", hooks_of(run.ddp))
    return run


@case("hook_allreduce")
def hook_allreduce(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.allreduce_hook).done()


@case("hook_allreduce_with_a_group")
def hook_allreduce_with_a_group(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.allreduce_hook, dist.new_group()).done()


@case("hook_fp16")
def hook_fp16(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.fp16_compress_hook).done()


@case("hook_bf16")
def hook_bf16(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.bf16_compress_hook).done()


@case("hook_fp16_wrapper")
def hook_fp16_wrapper(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)).done()


@case("hook_noop")
def hook_noop(rank: int, world: int) -> Evidence:
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    return hooked(rank, noop_hook).done()


def power_state(**options: Any) -> Any:
    """A state of PowerSGD, for models of one bucket.

    Its callbacks wait for collectives in the two threads of gloo that run callbacks: with more
    buckets than one, bare torch waits forever.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    kept = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2, **options}
    return powerSGD_hook.PowerSGDState(process_group=None, **kept)


def power_hook(name: str) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    return getattr(powerSGD_hook, name)


def power_evidence(run: Run, state: Any) -> Evidence:
    run.evidence.add("iteration", state.iter)
    run.evidence.add("errors", [state.error_dict[key] for key in sorted(state.error_dict)])
    return run.done()


@case("hook_power_sgd")
def hook_power_sgd(rank: int, world: int) -> Evidence:
    state = power_state()
    return power_evidence(
        hooked(rank, power_hook("powerSGD_hook"), state, bucket_cap_mb=None),
        state,
    )


@case("hook_batched_power_sgd")
def hook_batched_power_sgd(rank: int, world: int) -> Evidence:
    state = power_state()
    return power_evidence(
        hooked(rank, power_hook("batched_powerSGD_hook"), state, bucket_cap_mb=None),
        state,
    )


@case("hook_power_sgd_with_fp16")
def hook_power_sgd_with_fp16(rank: int, world: int) -> Evidence:
    state = power_state()
    hook = default_hooks.fp16_compress_wrapper(power_hook("powerSGD_hook"))
    return power_evidence(hooked(rank, hook, state, bucket_cap_mb=None), state)


@case("hook_by_hand")
def hook_by_hand(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)
    run = hooked(rank, watcher.average)
    run.evidence.add("seen", watcher.seen)
    return run.done()


@case("hook_closure")
def hook_closure(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)

    def closure(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        state["calls"] += 1
        return watcher.average(state, bucket)

    kept = {"calls": 0}
    run = hooked(rank, closure, kept)
    run.evidence.add("calls", kept)
    run.evidence.add("seen", watcher.seen)
    return run.done()


@case("hook_that_waits")
def hook_that_waits(rank: int, world: int) -> Evidence:
    seen: list[object] = []

    def waiting(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        held = bucket.buffer().clone()
        dist.all_reduce(held)
        parts = [torch.empty_like(held) for _ in range(world)]
        dist.all_gather(parts, bucket.buffer())
        seen.append([held, parts])
        bucket.set_buffer(held / world)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    run = hooked(rank, waiting)
    run.evidence.add("seen", seen)
    return run.done()


@case("hook_post_local_sgd")
def hook_post_local_sgd(rank: int, world: int) -> Evidence:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    groups = [dist.new_group([number]) for number in range(world)]
    state = local.PostLocalSGDState(
        process_group=None,
        subgroup=groups[rank],
        start_localSGD_iter=2,
    )
    run = Run(rank)
    run.ddp.register_comm_hook(state, local.post_localSGD_hook)
    run.optimizer = PostLocalSGDOptimizer(
        optim=torch.optim.SGD(run.ddp.parameters(), lr=0.05),
        averager=PeriodicModelAverager(period=2, warmup_steps=2),
    )
    run.step(6)
    run.evidence.add("iteration", state.iter)
    return run.done()


@case("hook_with_bucket_views")
def hook_with_bucket_views(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)
    run = hooked(rank, watcher.average, gradient_as_bucket_view=True, before=2)
    run.evidence.add("seen", watcher.seen)
    return run.done()


@case("hook_with_static_graph")
def hook_with_static_graph(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.fp16_compress_hook, static_graph=True, before=2).done()


@case("hook_with_unused_parameters")
def hook_with_unused_parameters(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)
    run = Run(rank, Branches(), find_unused_parameters=True)
    run.ddp.register_comm_hook(None, watcher.average)
    for used in ((rank % 3,), (0, 1), (), (2,)):
        run.arguments = (used,)
        run.step()
    run.evidence.add("seen", watcher.seen)
    return run.done()


@case("hook_with_no_sync")
def hook_with_no_sync(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)
    run = Run(rank)
    run.ddp.register_comm_hook(None, watcher.average)
    accumulated(run)
    run.evidence.add("seen", watcher.seen)
    return run.evidence


@case("late_hook_allreduce")
def late_hook_allreduce(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.allreduce_hook, before=2).done()


@case("late_hook_fp16")
def late_hook_fp16(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.fp16_compress_hook, before=2).done()


@case("late_hook_power_sgd")
def late_hook_power_sgd(rank: int, world: int) -> Evidence:
    state = power_state()
    return power_evidence(
        hooked(rank, power_hook("powerSGD_hook"), state, bucket_cap_mb=None, before=2),
        state,
    )


@case("late_hook_by_hand")
def late_hook_by_hand(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)
    run = hooked(rank, watcher.average, before=2)
    run.evidence.add("seen", watcher.seen)
    return run.done()


@case("hook_after_one_step")
def hook_after_one_step(rank: int, world: int) -> Evidence:
    return hooked(rank, default_hooks.fp16_compress_hook, before=1).done()


@case("hook_between_forward_and_backward")
def hook_between_forward_and_backward(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.at += 1
    loss = run.loss()
    run.evidence.add_attempt(
        "registering",
        lambda: run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    )
    loss.backward()
    run.update(loss)
    run.step(2)
    return run.done()


@case("hook_registered_twice")
def hook_registered_twice(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    run.evidence.add_attempt(
        "second",
        lambda: run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    )
    run.step(2)
    run.evidence.add_attempt(
        "third",
        lambda: run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    )
    run.step(2)
    run.evidence.add("hooks", hooks_of(run.ddp))
    return run.done()


@case("late_hook_registered_twice")
def late_hook_registered_twice(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    for number in range(2):
        run.evidence.add_attempt(
            f"registering {number}",
            lambda: run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
        )
        run.evidence.add("hooks", hooks_of(run.ddp))
        run.step(2)
    return run.done()


@case("second_hook_escapes")
def second_hook_escapes(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    run.step(2)
    run.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    return run.done()


@case("hook_that_is_refused")
def hook_that_is_refused(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)

    def wrongly_annotated(state: object, bucket: int) -> None:
        raise AssertionError

    for name, hook in (("a number", 3), ("wrong annotations", wrongly_annotated)):
        run.evidence.add_attempt(name, functools.partial(run.ddp.register_comm_hook, None, hook))
        run.evidence.add("hooks", hooks_of(run.ddp))
        run.step()
    return run.done()


@case("hook_that_raises")
def hook_that_raises(rank: int, world: int) -> Evidence:
    calls = []

    def raising(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        calls.append(bucket.index())
        if len(calls) == 3:
            raise RuntimeError("the hook gave up")
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]

    run = Run(rank)
    run.ddp.register_comm_hook(None, raising)
    run.try_steps(4)
    run.evidence.add("calls", calls)
    run.try_steps(1)
    return run.done()


@case("builtin_hook_allreduce")
def builtin_hook_allreduce(rank: int, world: int) -> Evidence:
    return with_builtin(rank, dist.BuiltinCommHookType.ALLREDUCE, before=0)


@case("builtin_hook_fp16")
def builtin_hook_fp16(rank: int, world: int) -> Evidence:
    return with_builtin(rank, dist.BuiltinCommHookType.FP16_COMPRESS, before=0)


@case("late_builtin_hook_allreduce")
def late_builtin_hook_allreduce(rank: int, world: int) -> Evidence:
    return with_builtin(rank, dist.BuiltinCommHookType.ALLREDUCE, before=2)


@case("late_builtin_hook_fp16")
def late_builtin_hook_fp16(rank: int, world: int) -> Evidence:
    return with_builtin(rank, dist.BuiltinCommHookType.FP16_COMPRESS, before=2)


def with_builtin(rank: int, kind: Any, before: int) -> Evidence:
    run = Run(rank)
    run.step(before)
    run.ddp._register_builtin_comm_hook(kind)
    run.evidence.add("hooks", hooks_of(run.ddp))
    run.step(4)
    run.evidence.add("logged", logged(run.ddp))
    return run.done()


@case("builtin_hook_and_another")
def builtin_hook_and_another(rank: int, world: int) -> Evidence:
    run = Run(rank)
    kind = dist.BuiltinCommHookType.FP16_COMPRESS
    run.ddp._register_builtin_comm_hook(kind)
    run.evidence.add_attempt(
        "a hook",
        lambda: run.ddp.register_comm_hook(None, default_hooks.allreduce_hook),
    )
    run.step(2)
    run.evidence.add_attempt("again", lambda: run.ddp._register_builtin_comm_hook(kind))
    run.step(2)
    other = Run(rank)
    other.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    other.step()
    other.evidence.add_attempt("after", lambda: other.ddp._register_builtin_comm_hook(kind))
    other.step(2)
    run.evidence.parts += other.done().parts
    return run.done()


@case("list_of_hooks")
def list_of_hooks(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        run.evidence.add("default", hooks_of(run.ddp))
        run.step(1)
    run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(3):
        run.evidence.add("registered", hooks_of(run.ddp))
        run.step(1)
    run.evidence.add("type", type(run.ddp._comm_hooks).__name__)
    hook, state = run.ddp._comm_hooks[0]
    run.evidence.add("is the user's", hook is default_hooks.fp16_compress_hook and state is None)
    return run.done()


@case("copies_with_a_hook")
def copies_with_a_hook(rank: int, world: int) -> Evidence:
    run = hooked(rank, default_hooks.fp16_compress_hook, before=1)
    for name, twin in (
        ("deep copy", copy.deepcopy(run.ddp)),
        ("pickle", pickle.loads(pickle.dumps(run.ddp))),
    ):
        run.evidence.add(f"{name} hooks", hooks_of(twin))
        plain_training(rank, twin, run.evidence, name)
        run.evidence.add_attempt(
            f"{name} hook again",
            functools.partial(twin.register_comm_hook, None, default_hooks.fp16_compress_hook),
        )
        plain_training(rank, twin, run.evidence, f"{name} again", start=60)
    run.step(2)
    return run.done()


@case("copies_with_a_closure_as_hook")
def copies_with_a_closure_as_hook(rank: int, world: int) -> Evidence:
    watcher = Watcher(world)

    def closure(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return watcher.average(state, bucket)

    run = hooked(rank, closure)
    run.evidence.add_attempt("pickle", lambda: pickle.dumps(run.ddp))
    twin = copy.deepcopy(run.ddp)
    run.evidence.add("copied hooks", hooks_of(twin))
    plain_training(rank, twin, run.evidence, "copy")
    run.step(2)
    run.evidence.add("seen", watcher.seen)
    return run.done()


@case("copies_with_a_group_as_state")
def copies_with_a_group_as_state(rank: int, world: int) -> Evidence:
    run = hooked(rank, default_hooks.allreduce_hook, dist.group.WORLD)
    run.evidence.add_attempt("pickle", lambda: pickle.dumps(run.ddp))
    run.evidence.add_attempt("deep copy", lambda: copy.deepcopy(run.ddp))
    run.step(2)
    return run.done()


@case("copies_with_power_sgd")
def copies_with_power_sgd(rank: int, world: int) -> Evidence:
    state = power_state()
    run = hooked(rank, power_hook("powerSGD_hook"), state, bucket_cap_mb=None)
    raw = pickle.dumps(state)
    found = pickle.loads(raw)
    run.evidence.add("iteration", found.iter)
    run.evidence.add_attempt("pickle", lambda: pickle.dumps(run.ddp))
    run.evidence.add_attempt("deep copy", lambda: copy.deepcopy(run.ddp))
    run.step(2)
    return power_evidence(run, state)


# Groups.


@case("several_modules_with_groups")
def several_modules_with_groups(rank: int, world: int) -> Evidence:
    runs = [Run(rank, Net(norm=bool(n % 2)), process_group=dist.new_group()) for n in range(3)]
    for _ in range(4):
        for run in runs:
            run.step()
    evidence = Evidence()
    for run in runs:
        evidence.parts += run.done().parts
    return evidence


@case("several_modules_with_hooks")
def several_modules_with_hooks(rank: int, world: int) -> Evidence:
    runs = [Run(rank) for _ in range(3)]
    watcher = Watcher(world)
    runs[1].step(2)
    runs[1].ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    runs[2].ddp.register_comm_hook(None, watcher.average)
    for _ in range(3):
        for run in runs:
            run.step()
    evidence = Evidence()
    evidence.add("seen", watcher.seen)
    for run in runs:
        evidence.add("hooks", hooks_of(run.ddp))
        evidence.parts += run.done().parts
    return evidence


@case("two_modules_in_one_backward")
def two_modules_in_one_backward(rank: int, world: int) -> Evidence:
    run = Run(rank)
    other = Run(rank, Net(norm=False), gradient_as_bucket_view=True)
    for _ in range(4):
        run.at += 1
        other.at += 1
        inputs, wanted = batch(rank, run.at)
        loss = functional.mse_loss(other.ddp(run.ddp(inputs).repeat(1, 3)), wanted)
        loss.backward()
        run.update(loss)
        other.update(loss)
    run.evidence.parts += other.done().parts
    return run.done()


@case("interleaved_forward_and_backward")
def interleaved_forward_and_backward(rank: int, world: int) -> Evidence:
    run = Run(rank)
    other = Run(rank)
    for _ in range(4):
        run.at += 1
        other.at += 1
        losses = (run.loss(), other.loss())
        losses[1].backward()
        losses[0].backward()
        run.update(losses[0])
        other.update(losses[1])
    run.evidence.parts += other.done().parts
    return run.done()


@case("group_of_two_ranks")
def group_of_two_ranks(rank: int, world: int) -> Evidence:
    pair = dist.new_group([0, 1])
    whole = Run(rank)
    whole.step(2)
    if rank < 2:
        part = Run(rank, process_group=pair)
        part.step(3)
        whole.evidence.parts += part.done().parts
        if rank == 0:
            whole.evidence.add("logged", logged(part.ddp))
        total = torch.full((3,), rank + 1.0)
        dist.all_reduce(total, group=pair)
        whole.evidence.add("total", total)
    whole.step(2)
    return whole.done()


@case("groups_in_reverse_order")
def groups_in_reverse_order(rank: int, world: int) -> Evidence:
    group = dist.new_group(list(reversed(range(world))))
    run = Run(rank, process_group=group)
    run.step(4)
    run.evidence.add("rank", dist.get_rank(group))
    run.evidence.add("ranks", dist.get_process_group_ranks(group))
    return run.done()


@case("copies_with_a_group")
def copies_with_a_group(rank: int, world: int) -> Evidence:
    run = Run(rank, process_group=dist.new_group())
    run.step(2)
    run.evidence.add_attempt("deep copy", lambda: copy.deepcopy(run.ddp))
    run.evidence.add_attempt("pickle", lambda: pickle.dumps(run.ddp))
    run.step(2)
    return run.done()


@case("wrapped_again_every_two_steps")
def wrapped_again_every_two_steps(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for number in range(4):
        run.step(2)
        run.wrap(run.ddp.module, gradient_as_bucket_view=bool(number % 2))
    run.step(2)
    return run.done()


@case("wrapped_again_with_hooks")
def wrapped_again_with_hooks(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for number in range(4):
        if number % 2:
            run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        run.step(2)
        run.evidence.add("hooks", hooks_of(run.ddp))
        run.wrap(run.ddp.module)
    run.step(2)
    return run.done()


@case("wrapped_while_the_first_lives")
def wrapped_while_the_first_lives(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    first = run.ddp
    run.wrap(first.module)
    run.try_steps(2)
    run.evidence.add("same", first.module is run.ddp.module)
    return run.done()


@case("module_after_its_wrapper")
def module_after_its_wrapper(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.use(run.ddp.module)
    gc.collect()
    run.step(2)
    run.evidence.add_module("alone", run.ddp)
    run.wrap(run.ddp)
    run.step(2)
    return run.done()


@case("hooks_of_autograd_removed")
def hooks_of_autograd_removed(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.ddp._remove_autograd_hooks()
    run.use(run.ddp.module)
    run.step(2)
    return run.done()


@case("process_group_made_again")
def process_group_made_again(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    model = run.ddp.module
    run.use(model)
    Held.meeting.reopen()
    run.wrap(model)
    run.step(2)
    run.evidence.add("collectives", own_collectives(rank, world))
    Held.meeting.reopen()
    run.wrap(model)
    run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    run.step(2)
    return run.done()


@case("process_group_from_a_file")
def process_group_from_a_file(rank: int, world: int) -> Evidence:
    meeting = Held.meeting
    run = Run(rank)
    run.step(2)
    model = run.ddp.module
    run.use(model)
    meeting.close()
    path = meeting.folder / "rendezvous"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=world,
        timeout=PATIENCE,
    )
    run.wrap(model)
    run.step(2)
    run.use(model)
    meeting.reopen()
    if rank == 0:
        path.unlink(missing_ok=True)
    run.wrap(model)
    run.step()
    return run.done()


@case("wrapper_of_a_destroyed_group")
def wrapper_of_a_destroyed_group(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    old = run.ddp
    Held.meeting.reopen()
    run.evidence.add("output", old.module(batch(rank, 3)[0]))
    run.evidence.add("group is gone", old.process_group is not dist.group.WORLD)
    run.wrap(old.module)
    del old
    gc.collect()
    run.step(3)
    return run.done()


@case("process_group_updated")
def process_group_updated(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(3)
    group = dist.new_group()
    run.ddp._update_process_group(group)
    run.step(3)
    run.evidence.add("is the new one", run.ddp.process_group is group)
    run.evidence.add("logged", logged(run.ddp))
    return run.done()


@case("process_group_updated_with_unused_parameters")
def process_group_updated_with_unused_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches(), find_unused_parameters=True)
    run.arguments = ((rank % 3,),)
    run.step(3)
    run.ddp._update_process_group(dist.new_group())
    run.step(3)
    run.ddp._update_process_group(dist.group.WORLD)
    run.step(2)
    return run.done()


@case("names_of_groups")
def names_of_groups(rank: int, world: int) -> Evidence:
    Held.meeting.reopen()
    evidence = Evidence()
    first = dist.new_group()
    run = Run(rank)
    run.step(3)
    second = dist.new_group([0, 1])
    evidence.add("count", dist.distributed_c10d._world.group_count)
    evidence.add("names", list(dist.distributed_c10d._world.pg_names.values()))
    evidence.add("first", first.group_name)
    evidence.add("second", type(second).__name__)
    dist.destroy_process_group(first)
    evidence.add("names", list(dist.distributed_c10d._world.pg_names.values()))
    evidence.parts += run.done().parts
    return evidence


@case("numbers_of_collectives")
def numbers_of_collectives(rank: int, world: int) -> Evidence:
    Held.meeting.reopen()
    evidence = Evidence()
    run = Run(rank)
    world_group: Any = dist.group.WORLD
    for _ in range(4):
        run.step()
        evidence.add("number", world_group._get_sequence_number_for_group())
    dist.all_reduce(torch.ones(1))
    evidence.add("number", world_group._get_sequence_number_for_group())
    evidence.parts += run.done().parts
    return evidence


@case("kinds_of_groups")
def kinds_of_groups(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    held: Any = run.ddp.process_group
    evidence = run.evidence
    evidence.add("same", held is dist.group.WORLD)
    evidence.add("type", [each.__qualname__ for each in type(held).__mro__])
    evidence.add("module", type(held).__module__)
    evidence.add("is a group", isinstance(held, dist.ProcessGroup))
    evidence.add("backend", [dist.get_backend(), held.name(), held.group_name, held.group_desc])
    inner = held._get_backend(torch.device("cpu"))
    evidence.add("inner", [type(inner).__qualname__, inner.name()])
    evidence.add("attributes", sorted(vars(held)) if hasattr(held, "__dict__") else None)
    evidence.add("default", dist.is_initialized() and dist.get_world_size() == world)
    evidence.add("store", type(dist.distributed_c10d._get_default_store()).__name__)
    return run.done()


@case("debug_level_info")
def debug_level_info(rank: int, world: int) -> Evidence:
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.INFO)  # with DETAIL, set so late, bare torch crashes
    try:
        run = Run(rank, Branches())
        run.arguments = ((0, 1, 2),)
        run.step(3)
        run.arguments = ((0, 2),)
        run.try_steps(2)
    finally:
        dist.set_debug_level(before)
    return run.done()


# Kinds of models and gradients.


class Words(nn.Module):
    """A bag of words with gradients that are sparse."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(40, WIDTH, sparse=sparse)
        self.bag = nn.EmbeddingBag(40, WIDTH, sparse=sparse, mode="sum")
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        chosen = (inputs.abs() * 10).long().clamp_max(39)
        hidden = self.words(chosen).mean(dim=1) + self.bag(chosen)
        return self.last(torch.relu(self.first(hidden)))  # type: ignore[no-any-return]


@case("sparse_gradients")
def sparse_gradients(rank: int, world: int) -> Evidence:
    run = Run(rank, Words())
    run.optimizer = torch.optim.SGD(run.ddp.parameters(), lr=0.1)
    run.step(5)
    return run.done()


@case("sparse_gradients_with_sparse_adam")
def sparse_gradients_with_sparse_adam(rank: int, world: int) -> Evidence:
    run = Run(rank, Words())
    dense = torch.optim.SGD([*run.ddp.module.first.parameters()], lr=0.1)
    sparse = torch.optim.SparseAdam(
        [*run.ddp.module.words.parameters(), *run.ddp.module.bag.parameters()],
        lr=0.01,
    )
    run.optimizer = dense
    for _ in range(4):
        run.at += 1
        loss = run.loss()
        loss.backward()
        sparse.step()
        run.update(loss)
        sparse.zero_grad()
    return run.done()


@case("sparse_gradients_with_no_sync")
def sparse_gradients_with_no_sync(rank: int, world: int) -> Evidence:
    run = Run(rank, Words())
    run.optimizer = torch.optim.SGD(run.ddp.parameters(), lr=0.1)
    return accumulated(run, micro=2)


@case("sparse_gradients_with_join")
def sparse_gradients_with_join(rank: int, world: int) -> Evidence:
    run = Run(rank, Words())
    run.optimizer = torch.optim.SGD(run.ddp.parameters(), lr=0.1)
    run.step(2)
    with run.ddp.join():
        run.try_steps(2)
    return run.done()


@case("sparse_gradients_with_a_hook")
def sparse_gradients_with_a_hook(rank: int, world: int) -> Evidence:
    run = Run(rank, Words())
    run.optimizer = torch.optim.SGD(run.ddp.parameters(), lr=0.1)
    run.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    run.try_steps(3)
    return run.done()


class Mixed(nn.Module):
    """Layers of three types of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.third = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.last = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs)).double()
        hidden = torch.relu(self.second(hidden)).bfloat16()
        return self.last(torch.relu(self.third(hidden)).float())  # type: ignore[no-any-return]


@case("mixed_types")
def mixed_types(rank: int, world: int) -> Evidence:
    run = Run(rank, Mixed())
    run.step(5)
    return run.done()


@case("mixed_types_with_a_hook")
def mixed_types_with_a_hook(rank: int, world: int) -> Evidence:
    run = hooked(rank, default_hooks.fp16_compress_hook, model=Mixed(), before=2)
    return run.done()


@case("complex_parameters")
def complex_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Waves(), gradient_as_bucket_view=False)
    run.step(4)
    return run.done()


class Waves(nn.Module):
    """A layer of complex numbers between two of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH, dtype=torch.complex64)
        self.last = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.first(inputs).to(torch.complex64))
        return self.last(torch.tanh(hidden.abs()))  # type: ignore[no-any-return]


class Pictures(nn.Module):
    """A small network of convolutions, in the memory format that is fast on GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Linear(32, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        pictures = inputs.view(-1, 1, 3, 4).contiguous(memory_format=torch.channels_last)
        hidden = torch.relu(self.second(torch.relu(self.norm(self.first(pictures)))))
        return self.last(hidden.mean(dim=(2, 3)))  # type: ignore[no-any-return]


@case("channels_last")
def channels_last(rank: int, world: int) -> Evidence:
    for views in (False, True):
        model = Pictures().to(memory_format=torch.channels_last)
        run = Run(rank, model, gradient_as_bucket_view=views)
        run.step(3)
        run.at += 1
        loss = run.loss()
        loss.backward()
        run.evidence.add("places", places_of_gradients(run.ddp))
        run.update(loss)
    return run.done()


class Tied(nn.Module):
    """Two layers that share their weights, and an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)
        self.third.weight = self.second.weight
        self.empty = nn.Parameter(torch.empty(0))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(inputs))))
        hidden = torch.relu(self.third(hidden)) * self.scale
        return self.last(hidden) + self.empty.sum()  # type: ignore[no-any-return]


@case("tied_and_empty_parameters")
def tied_and_empty_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Tied())
    run.step(4)
    return run.done()


class Answers(nn.Module):
    """A model that answers with a dictionary, of which not all is used."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.side = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, inputs: torch.Tensor, *, factor: float = 1.0) -> dict[str, Any]:
        return {
            "main": self.net(inputs) * factor,
            "others": (self.side(inputs), [None, "text"]),
        }


@case("dictionary_as_output")
def dictionary_as_output(rank: int, world: int) -> Evidence:
    run = Run(rank, Answers(), find_unused_parameters=True)
    for number in range(4):
        run.at += 1
        inputs, wanted = batch(rank, run.at)
        answers = run.ddp(inputs, factor=0.5)
        run.evidence.add("types", [type(answers).__name__, type(answers["others"]).__name__])
        loss = functional.mse_loss(answers["main"], wanted)
        if number % 2:
            loss = loss + answers["others"][0].square().mean()
        run.evidence.add_attempt("backward", loss.backward)
        run.update(loss)
    return run.done()


@case("second_order")
def second_order(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False))
    for _ in range(4):
        run.at += 1
        inputs, wanted = batch(rank, run.at)
        inputs.requires_grad_()
        outputs = run.ddp(inputs)
        (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        run.evidence.add("slopes", slopes)
        loss = functional.mse_loss(outputs, wanted) + slopes.square().sum()
        loss.backward()
        run.update(loss)
    return run.done()


@case("second_order_of_the_weights")
def second_order_of_the_weights(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False))
    run.step()
    for _ in range(3):
        run.at += 1
        loss = run.loss()
        slopes = torch.autograd.grad(loss, list(run.ddp.parameters()), create_graph=True)
        run.evidence.add("slopes", list(slopes))
        total = loss + sum(slope.square().sum() for slope in slopes)
        total.backward()
        run.update(total)
    return run.done()


@case("backward_with_a_graph")
def backward_with_a_graph(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False))
    run.step()
    for _ in range(1):
        run.at += 1
        loss = run.loss()
        run.evidence.add_attempt("backward", functools.partial(loss.backward, create_graph=True))
        kept = [parameter.grad for parameter in run.ddp.parameters()]
        run.evidence.add("graph", [None if grad is None else grad.requires_grad for grad in kept])
        run.update(loss)
    run.try_steps(1)
    return run.done()


@case("autograd_grad_alone")
def autograd_grad_alone(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)

    def alone() -> None:
        slopes = torch.autograd.grad(run.loss(), list(run.ddp.parameters()))
        run.evidence.add("slopes", list(slopes))

    run.evidence.add_attempt("grad", alone)
    run.try_steps(2)
    return run.done()


@case("retained_graph")
def retained_graph(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step()
    for _ in range(2):
        run.at += 1
        loss = run.loss()
        loss.backward(retain_graph=True)
        run.evidence.add("first", [parameter.grad for parameter in run.ddp.parameters()])
        run.evidence.add_attempt("second backward", loss.backward)
        run.update(loss)
    run.try_steps(2)
    return run.done()


@case("retained_graph_with_no_sync")
def retained_graph_with_no_sync(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step()
    for _ in range(2):
        run.at += 1
        loss = run.loss()
        with run.ddp.no_sync():
            loss.backward(retain_graph=True)
        loss.backward()
        run.update(loss)
    run.step()
    return run.done()


@case("two_forwards_and_one_backward")
def two_forwards_and_one_backward(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False))
    run.step(2)
    for _ in range(2):
        run.at += 1
        loss = run.loss() + run.loss()
        run.evidence.add_attempt("backward", loss.backward)
        run.update(loss)
    run.try_steps(1)
    return run.done()


@case("two_forwards_and_one_backward_of_a_static_graph")
def two_forwards_and_one_backward_of_a_static_graph(rank: int, world: int) -> Evidence:
    run = Run(rank, Net(norm=False), static_graph=True)
    for _ in range(4):
        run.at += 1
        loss = run.loss() + run.loss()
        run.evidence.add_attempt("backward", loss.backward)
        run.update(loss)
    return run.done()


@case("inside_a_bigger_module")
def inside_a_bigger_module(rank: int, world: int) -> Evidence:
    run = Run(rank)
    outer = Outer(run.ddp)
    run.use(outer)
    run.step(4)
    run.evidence.add("modules", [name for name, _ in outer.named_modules()])
    return run.done()


@case("wrapper_of_a_wrapper")
def wrapper_of_a_wrapper(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step()
    run.wrap(Outer(run.ddp))
    run.try_steps(3)
    return run.done()


@case("autograd_collective_in_the_model")
def autograd_collective_in_the_model(rank: int, world: int) -> Evidence:
    from torch.distributed.nn.functional import all_reduce

    class Shared(Net):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = all_reduce(super().forward(inputs))
            return super().forward(inputs) + 0.1 * total

    run = Run(rank, Shared(norm=False))
    run.step(4)
    return run.done()


# Steps that go wrong.


class Fragile(nn.Module):
    """A model that raises when it is told to, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.fails = ""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.net.norm(self.net.first(inputs))
        if self.fails == "forward":
            raise ValueError("the forward pass fails")
        if self.fails == "backward" and hidden.requires_grad:
            hidden.register_hook(self.refuse)
        hidden = torch.relu(self.net.third(torch.relu(self.net.second(hidden))))
        return self.net.last(hidden)  # type: ignore[no-any-return]

    def refuse(self, gradient: torch.Tensor) -> None:
        raise ValueError("the backward pass fails")


@case("exception_in_forward")
def exception_in_forward(rank: int, world: int) -> Evidence:
    run = Run(rank, Fragile())
    run.step(2)
    for _ in range(2):
        run.ddp.module.fails = "forward"
        run.try_steps()
        run.ddp.module.fails = ""
        run.try_steps(2)
    return run.done()


@case("exception_in_backward")
def exception_in_backward(rank: int, world: int) -> Evidence:
    run = Run(rank, Fragile())
    run.step(2)
    run.ddp.module.fails = "backward"
    run.try_steps()
    run.ddp.module.fails = ""
    run.try_steps()
    run.evidence.add_attempt("finalized", run.ddp._check_reducer_finalized)
    run.wrap(run.ddp.module)
    run.step(2)
    return run.done()


@case("step_without_gradient")
def step_without_gradient(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.at += 1
    run.evidence.add("loss alone", run.loss())
    run.optimizer.step()
    run.step()
    run.evidence.add("another", run.loss())
    run.step(2)
    return run.done()


@case("loss_without_parameters")
def loss_without_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank, Through(), find_unused_parameters=True)
    run.step(2)
    run.arguments = (True,)
    run.try_steps()
    run.arguments = ()
    run.try_steps(2)
    return run.done()


class Through(Net):
    """A model that may hand its input through."""

    def forward(self, inputs: torch.Tensor, through: bool = False) -> torch.Tensor:
        if through:
            return inputs[:, :OUTPUTS].clone().requires_grad_()
        return super().forward(inputs)


@case("gradients_set_to_nan")
def gradients_set_to_nan(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.at += 1
    (run.loss() * (float("nan") if rank == 1 else 1.0)).backward()
    run.evidence.add("gradients", [parameter.grad for parameter in run.ddp.parameters()])
    run.optimizer.zero_grad()
    run.step(2)
    return run.done()


# What a user may look at.


def logged(ddp: Any) -> dict[str, str]:
    """Return torch's notes about the wrapper, except for times."""
    names = [
        "world_size",
        "rank",
        "module_name",
        "comm_hook",
        "bucket_sizes",
        "rebuilt_bucket_sizes",
        "backend_name",
        "has_rebuilt_buckets",
        "gradient_as_bucket_view",
        "find_unused_parameters",
        "static_graph",
        "num_parameter_tensors",
        "total_parameter_size_bytes",
        "bucket_cap_bytes",
        "broadcast_buffers",
        "initial_bucket_size_limits",
        "rebuilt_per_bucket_param_indices",
        "prev_iteration_grad_ready_order_indices",
        "unused_parameter_size",
        "has_error",
        "num_iterations",
        "num_buckets_reduced",
        "iteration",
        "dtypes",
        "join_uneven_inputs",
    ]
    found = ddp._get_ddp_logging_data()
    return {name: str(found.get(name, "absent")) for name in names}


@case("logging_data")
def logging_data(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(4):
        run.evidence.add("logged", logged(run.ddp))
        run.step()
    run.evidence.add("names", sorted(run.ddp._get_ddp_logging_data()))
    other = Run(
        rank,
        Branches(),
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )
    other.arguments = ((0,),)
    other.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(3):
        other.step()
        other.evidence.add("logged", logged(other.ddp))
    third = Run(rank, static_graph=True)
    third.step(3)
    third.evidence.add("logged", logged(third.ddp))
    run.evidence.parts += other.done().parts + third.done().parts
    return run.done()


@case("logging_data_with_a_rate")
def logging_data_with_a_rate(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.ddp._set_ddp_runtime_logging_sample_rate(2)
    for _ in range(5):
        run.step()
        run.evidence.add("logged", logged(run.ddp))
    return run.done()


@case("reducer")
def reducer(rank: int, world: int) -> Evidence:
    run = Run(rank)
    evidence = run.evidence
    for _ in range(3):
        held = run.ddp.reducer
        evidence.add("type", [each.__qualname__ for each in type(held).__mro__])
        evidence.add("module", type(held).__module__)
        evidence.add("is a reducer", isinstance(held, dist.Reducer))
        evidence.add("is exactly one", type(held) is dist.Reducer)
        evidence.add("attributes", sorted(dir(held)))
        evidence.add("logger", type(run.ddp.logger).__qualname__)
        evidence.add("static", held._ddp_graph_static())
        run.step()
        evidence.add("rebuilt", held._rebuild_buckets())
        evidence.add("finalized", held._check_reducer_finalized())
        buckets = held._get_zeros_like_grad_buckets()
        evidence.add("zeros", [bucket.buffer() for bucket in buckets])
        evidence.add("same", held is run.ddp.reducer)
    evidence.add("class", [dist.Reducer.__name__, dist.Reducer.__module__])
    return run.done()


@case("reducer_state")
def reducer_state(rank: int, world: int) -> Evidence:
    run = Run(rank, Branches(), find_unused_parameters=True)
    for used in ((rank % 3,), (0, 1), (2,)):
        run.arguments = (used,)
        run.step()
        run.evidence.add("used", run.ddp.reducer._get_local_used_map())
        run.evidence.add("prepared", run.ddp.reducer.prepare_for_forward())
    return run.done()


@case("reducer_rebuilds_when_told")
def reducer_rebuilds_when_told(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.at += 1
    loss = run.loss()
    run.evidence.add("before", run.ddp.reducer._rebuild_buckets())
    loss.backward()
    run.update(loss)
    run.evidence.add("after", run.ddp.reducer._rebuild_buckets())
    run.evidence.add("again", run.ddp.reducer._rebuild_buckets())
    run.step(3)
    run.evidence.add("logged", logged(run.ddp))
    return run.done()


@case("attributes_of_the_wrapper")
def attributes_of_the_wrapper(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        run.evidence.add("has", list(vars(run.ddp)))
        run.evidence.add("module has", list(vars(run.ddp.module)))
        run.evidence.add("layer has", list(vars(run.ddp.module.second)))
        run.evidence.add("plain ones", plain_values(run.ddp))
        run.step()
    run.evidence.add("all", sorted(dir(run.ddp)))
    return run.done()


def plain_values(ddp: nn.Module) -> dict[str, str]:
    kinds = (bool, int, float, str, set, type(None))
    return {name: str(value) for name, value in vars(ddp).items() if isinstance(value, kinds)}


@case("attributes_of_parameters")
def attributes_of_parameters(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        for parameter in run.ddp.parameters():
            held: Any = parameter
            run.evidence.add("dictionary", sorted(held.__dict__))
            run.evidence.add("hooks", len(held._backward_hooks or ()))
            run.evidence.add("later hooks", len(held._post_accumulate_grad_hooks or ()))
            run.evidence.add("type", type(held).__qualname__)
            run.evidence.add("version", held._version)
        run.step()
    return run.done()


@case("hooks_of_modules")
def hooks_of_modules(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        for name, module in run.ddp.named_modules():
            kinds = [key for key in vars(module) if key.endswith(("_hooks", "_kwargs"))]
            held = vars(module)
            run.evidence.add(
                name,
                {key: len(held[key]) for key in kinds if hasattr(held[key], "__len__")},
            )
            run.evidence.add("forward", [type(module).__qualname__, "forward" in held])
        run.step()
    return run.done()


@case("hooks_of_the_optimizer")
def hooks_of_the_optimizer(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        held: Any = run.optimizer
        run.evidence.add("has", sorted(vars(held)))
        run.evidence.add("before", len(held._optimizer_step_pre_hooks))
        run.evidence.add("after", len(held._optimizer_step_post_hooks))
        run.evidence.add("state", sorted(held.__getstate__()))
        run.evidence.add("text", repr(held))
        run.step()
    return run.done()


@case("texts_of_the_wrapper")
def texts_of_the_wrapper(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.evidence.add("text", repr(run.ddp))
    run.evidence.add("type", [each.__qualname__ for each in type(run.ddp).__mro__])
    run.evidence.add("exactly", type(run.ddp) is DistributedDataParallel)
    run.evidence.add("module", type(run.ddp).__module__)
    run.evidence.add("children", [name for name, _ in run.ddp.named_children()])
    run.evidence.add("within", DistributedDataParallel._get_active_ddp_module() is None)
    return run.done()


@case("order_of_user_hooks")
def order_of_user_hooks(rank: int, world: int) -> Evidence:
    model = Net(norm=False)
    order: list[str] = []

    def note(text: str, *given: object) -> None:
        order.append(text)

    for name, parameter in model.named_parameters():
        parameter.register_hook(functools.partial(note, f"early {name}"))
        parameter.register_post_accumulate_grad_hook(
            functools.partial(note, f"early accumulated {name}"),
        )
    run = Run(rank, model)
    kept = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(functools.partial(note, f"late {name}"))
        parameter.register_post_accumulate_grad_hook(
            functools.partial(note, f"late accumulated {name}"),
        )
        node: Any = parameter.expand_as(parameter).grad_fn
        kept.append(node.next_functions[0][0])
        kept[-1].register_hook(functools.partial(note, f"node {name}"))
        kept[-1].register_prehook(functools.partial(note, f"node before {name}"))
    for name, module in run.ddp.named_modules():
        module.register_forward_pre_hook(functools.partial(note, f"before {name}"))
        module.register_forward_hook(functools.partial(note, f"after {name}"))
        module.register_full_backward_pre_hook(functools.partial(note, f"before back {name}"))
        module.register_full_backward_hook(functools.partial(note, f"after back {name}"))
    run.optimizer.register_step_pre_hook(functools.partial(note, "before update"))
    run.optimizer.register_step_post_hook(functools.partial(note, "after update"))
    for _ in range(4):
        run.step()
        order.append("step")
    run.evidence.add("order", order)
    return run.done()


@case("graph_of_the_loss")
def graph_of_the_loss(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for static in (False, True):
        if static:
            run.wrap(Net(), static_graph=True)
        for _ in range(3):
            run.at += 1
            loss = run.loss()
            run.evidence.add("graph", nodes_of(loss))
            loss.backward()
            run.update(loss)
    return run.done()


def nodes_of(loss: torch.Tensor) -> list[str]:
    found: list[str] = []
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            found.append(node.name())
            waiting.extend(following for following, _ in node.next_functions)
    return found


@case("wrapper_is_released")
def wrapper_is_released(rank: int, world: int) -> Evidence:
    return released(rank, at_once=False, hook=False)


@case("wrapper_with_a_hook_is_released")
def wrapper_with_a_hook_is_released(rank: int, world: int) -> Evidence:
    return released(rank, at_once=False, hook=True)


@case("wrapper_is_released_at_once")
def wrapper_is_released_at_once(rank: int, world: int) -> Evidence:
    return released(rank, at_once=True, hook=False)


def released(rank: int, at_once: bool, hook: bool) -> Evidence:
    """Report objects that outlive the user's last reference, at once or after a collection."""
    run = Run(rank)
    watcher = Watcher(2)
    run.step()
    if hook:
        run.ddp.register_comm_hook(None, watcher.average)
    run.step(2)
    watched = {
        "wrapper": weakref.ref(run.ddp),
        "module": weakref.ref(run.ddp.module),
        "layer": weakref.ref(run.ddp.module.second),
        "parameter": weakref.ref(run.ddp.module.second.weight),
        "reducer": weakref.ref(run.ddp.reducer),
        "logger": weakref.ref(run.ddp.logger),
        "optimizer": weakref.ref(run.optimizer),
        "watcher": weakref.ref(watcher),
    }
    evidence = run.evidence
    gc.collect()
    gc.disable()
    try:
        del run, watcher
        if not at_once:
            gc.collect()
        evidence.add("released", {name: found() is None for name, found in watched.items()})
    finally:
        gc.enable()
        gc.collect()
    return evidence


@case("gradients_are_released")
def gradients_are_released(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    run.at += 1
    loss = run.loss()
    loss.backward()
    kept: Any = run.ddp.module.second.weight.grad
    watched = {"gradient": weakref.ref(kept), "loss": weakref.ref(loss)}
    del kept, loss
    run.optimizer.zero_grad()
    run.evidence.add("released", {name: found() is None for name, found in watched.items()})
    run.step()
    return run.done()


@case("groups_are_released")
def groups_are_released(rank: int, world: int) -> Evidence:
    evidence = Evidence()
    group: Any = dist.new_group()
    run = Run(rank, process_group=group)
    run.step(2)
    default: Any = dist.group.WORLD
    watched = {"group": weakref.ref(group), "default": weakref.ref(default)}
    run.use(run.ddp.module)
    Held.meeting.meet()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    evidence.add("released", {name: found() is None for name, found in watched.items()})
    del default
    Held.meeting.close()
    gc.collect()
    evidence.add("then", {name: found() is None for name, found in watched.items()})
    Held.meeting.open()
    run.step()
    evidence.parts += run.done().parts
    return evidence


# Collectives of the user.


def own_collectives(rank: int, world: int) -> list[object]:
    """A few collectives of all kinds, with their results."""
    found: list[object] = []
    values = torch.arange(5, dtype=torch.float32) * (rank + 1.25)
    total = values.clone()
    found.append(None if dist.all_reduce(total) is None else "work")
    found.append(total)
    largest = values.clone()
    work: Any = dist.all_reduce(largest, op=dist.ReduceOp.MAX, async_op=True)
    found.extend([type(work).__name__, work.wait(), largest, work.is_completed()])
    parts = [torch.empty(5) for _ in range(world)]
    dist.all_gather(parts, values)
    found.extend(parts)
    shared = values.clone()
    dist.broadcast(shared, src=1)
    found.append(shared)
    return found


@case("user_collectives")
def user_collectives(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(3):
        run.step()
        run.evidence.add("collectives", own_collectives(rank, world))
    return run.done()


@case("user_futures")
def user_futures(rank: int, world: int) -> Evidence:
    run = Run(rank)
    run.step(2)
    values = torch.arange(6, dtype=torch.float32) * (rank + 0.3)
    work: Any = dist.all_reduce(values.clone(), async_op=True)
    future = work.get_future()
    half = future.then(lambda done: done.value()[0] / 2)
    third = half.then(lambda done: done.value() + 1)
    run.evidence.add("half", half.wait())
    run.evidence.add("third", third.wait())
    run.evidence.add("types", [type(future).__name__, type(third).__name__])
    parts = [torch.empty(6) for _ in range(world)]
    gathering: Any = dist.all_gather(parts, values, async_op=True)
    longest = gathering.get_future().then(lambda done: torch.cat(parts).sum())
    run.evidence.add("sum", longest.wait())
    works: list[Any] = [dist.all_reduce(values, async_op=True) for _ in range(1)]
    for each in works:
        run.evidence.add("wait", each.wait())
    run.evidence.add("values", values)
    run.evidence.add("done", [each.is_completed() for each in works])
    run.evidence.add("success", [each.is_success() for each in works])
    run.step(2)
    return run.done()


@case("user_collectives_between_forward_and_backward")
def user_collectives_between_forward_and_backward(rank: int, world: int) -> Evidence:
    run = Run(rank)
    for _ in range(4):
        run.at += 1
        loss = run.loss()
        mean = loss.detach().clone()
        work: Any = dist.all_reduce(mean, async_op=True)
        loss.backward()
        work.wait()
        run.evidence.add("mean", mean / world)
        run.update(loss)
    return run.done()


@case("many_collectives")
def many_collectives(rank: int, world: int) -> Evidence:
    evidence = Evidence()
    values = torch.arange(2.0 * world) + rank

    def into(name: str, action: Callable[[torch.Tensor], object], shape: int) -> None:
        kept = torch.zeros(shape)
        evidence.add_attempt(name, lambda: action(kept))
        evidence.add(f"{name} result", kept)

    into("gather into", lambda out: dist.all_gather_into_tensor(out, values), 2 * world * world)
    into("reduce scatter", lambda out: dist.reduce_scatter_tensor(out, values.clone()), 2)
    into("all to all", lambda out: dist.all_to_all_single(out, values), 2 * world)
    into(
        "scatter",
        lambda out: dist.scatter(out, list(values.chunk(world)) if rank == 0 else None, src=0),
        2,
    )
    reduced = values.clone()
    evidence.add_attempt("reduce", lambda: dist.reduce(reduced, dst=0))
    evidence.add("reduced", reduced if rank == 0 else None)
    gathered = [torch.zeros(2 * world) for _ in range(world)] if rank == 0 else None
    evidence.add_attempt("gather", lambda: dist.gather(values, gathered, dst=0))
    evidence.add("gathered", gathered)
    objects: list[Any] = [None] * world
    evidence.add_attempt("objects", lambda: dist.all_gather_object(objects, {"rank": rank}))
    evidence.add("all objects", objects)
    told_all: list[Any] = ["from rank 0" if rank == 0 else None]
    evidence.add_attempt("told", lambda: dist.broadcast_object_list(told_all, src=0))
    evidence.add("told objects", told_all)
    if rank == 0:
        dist.send(values, dst=1)
    elif rank == 1:
        kept = torch.zeros(2 * world)
        evidence.add("source", dist.recv(kept, src=0))
        evidence.add("received", kept)
    ring = [
        dist.P2POp(dist.isend, values, (rank + 1) % world),
        dist.P2POp(dist.irecv, torch.zeros(2 * world), (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    evidence.add("ring", ring[1].tensor)
    evidence.add_attempt("barrier", dist.barrier)
    evidence.add_attempt("monitored", dist.monitored_barrier)
    for kind in (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8):
        number = torch.full((3,), rank + 1).to(kind)
        evidence.add_attempt(str(kind), functools.partial(dist.all_reduce, number))
        evidence.add(f"{kind} result", number)
    return evidence


@case("functional_collectives")
def functional_collectives(rank: int, world: int) -> Evidence:
    from torch.distributed import _functional_collectives as functional_calls

    run = Run(rank)
    run.step(2)
    values = torch.arange(4.0) * (rank + 1)
    run.evidence.add("sum", functional_calls.all_reduce(values, "sum", dist.group.WORLD) + 0)
    gathered = functional_calls.all_gather_tensor(values, 0, dist.group.WORLD)
    run.evidence.add("gathered", gathered + 0)
    run.step(2)
    return run.done()


@case("refused_collectives")
def refused_collectives(rank: int, world: int) -> Evidence:
    evidence = Evidence()
    wrong: Any = "text"
    evidence.add_attempt("text", lambda: dist.all_reduce(wrong))
    evidence.add_attempt("nothing", dist.all_reduce)
    evidence.add_attempt("a list", lambda: dist.all_gather(wrong, torch.ones(1)))
    evidence.add_attempt("source", lambda: dist.broadcast(torch.ones(1), src=99))
    call: Any = dist.all_reduce
    evidence.add_attempt("keyword", lambda: call(torch.ones(1), wrong=1))
    group: Any = dist.new_group([0])
    evidence.add_attempt("not a member", lambda: dist.all_reduce(torch.ones(1), group=group))
    return evidence


@case("signatures")
def signatures(rank: int, world: int) -> Evidence:
    evidence = Evidence()
    run = Run(rank)
    run.step(2)
    calls = (
        "all_reduce all_gather broadcast reduce_scatter barrier all_to_all_single send recv isend "
        "new_group init_process_group destroy_process_group all_gather_object "
        "all_gather_into_tensor"
    )
    inner: Any = dist.distributed_c10d
    outer: Any = dist
    for name in calls.split():
        function = getattr(outer, name)
        evidence.add(name, text_of_function(function))
        evidence.add(f"{name} is one", function is getattr(inner, name))
        evidence.add_attempt(f"{name} pickled", functools.partial(pickle.dumps, function))
    kinds: list[Any] = [DistributedDataParallel, torch.optim.SGD, nn.Linear, torch.Tensor]
    for kind in kinds:
        for name in ("__init__", "forward", "register_comm_hook", "step", "backward", "no_sync"):
            if hasattr(kind, name):
                evidence.add(f"{kind.__name__}.{name}", text_of_function(getattr(kind, name)))
    for name in ("__init__", "register_comm_hook", "forward", "__getstate__", "__setstate__"):
        held = name in vars(DistributedDataParallel)
        evidence.add(f"own {name}", [held, name in vars(run.ddp)])
    builtin: Any = torch._C._distributed_c10d
    evidence.add("registers", dist._register_comm_hook is builtin._register_comm_hook)
    evidence.add_attempt("pickled", functools.partial(pickle.dumps, dist._register_comm_hook))
    return evidence


def text_of_function(function: Any) -> list[str]:
    try:
        signature = str(inspect.signature(function))
    except ValueError as error:
        signature = told(error)
    return [
        without_addresses(signature),
        function.__name__,
        function.__qualname__,
        str(getattr(function, "__module__", None)),
        str(hash_of(function.__doc__ or "")),
        type(function).__name__,
    ]


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Compilers.


@case("compiled_eager")
def compiled_eager(rank: int, world: int) -> Evidence:
    run = Run(rank, bucket_cap_mb=1)  # the compiler of torch refuses smaller ones
    whole = run.ddp
    run.use(torch.compile(whole, backend="eager"))
    run.step(4)
    torch._dynamo.reset()
    return run.done()


@case("compiled_inside")
def compiled_inside(rank: int, world: int) -> Evidence:
    inner: Any = torch.compile(Net(norm=False), backend="eager")
    run = Run(rank, inner, bucket_cap_mb=1)
    run.step(4)
    torch._dynamo.reset()
    return run.done()


@case("compiled_with_a_hook")
def compiled_with_a_hook(rank: int, world: int) -> Evidence:
    run = Run(rank, bucket_cap_mb=1)
    run.step(2)
    run.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    run.use(torch.compile(run.ddp, backend="eager"))
    run.step(3)
    torch._dynamo.reset()
    return run.done()


@case("compiled_wait")
def compiled_wait(rank: int, world: int) -> Evidence:
    """A compiled function waits: the compiler must find what it finds without profkit."""
    run = Run(rank)
    run.step(2)
    counters = torch._dynamo.utils.counters
    counters.clear()

    def finish(values: torch.Tensor, work: Any) -> torch.Tensor:
        doubled = values * 2
        work.wait()
        return doubled + values

    compiled: Any = torch.compile(finish, backend="eager")
    for _ in range(3):
        values = torch.arange(6, dtype=torch.float32) * (rank + 0.3)
        work = dist.all_reduce(values, async_op=True)
        result: torch.Tensor = compiled(torch.ones(6), work)
        run.evidence.add("result", result)
        run.evidence.add("sum", values)
    run.evidence.add("graphs", counters["stats"]["unique_graphs"])
    run.evidence.add("breaks", len(counters["graph_break"]))
    torch._dynamo.reset()
    return run.done()


def run_case(name: str, rank: int, world: int) -> tuple[dict[str, object], bool]:
    """The line of a case, and whether an exception ended it."""
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002
    torch.manual_seed(100 + rank)
    failed = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            evidence = CASES[name](rank, world)
        except Exception as error:  # noqa: BLE001
            failed = True
            outcome = told(error)
            evidence = Evidence()
            evidence.add("error", outcome)
        else:
            outcome = "trained"
    evidence.add("warnings", sorted(Counter(map(text_of_warning, caught)).items()))
    evidence.add("random numbers", torch.get_rng_state())
    evidence.add("Python's random numbers", hash_of(repr(random.getstate())))
    state = repr(np.random.get_state())  # noqa: NPY002
    evidence.add("NumPy's random numbers", hash_of(state))
    line: dict[str, object] = {
        "case": name,
        "outcome": outcome,
        "digest": evidence.digest(),
        "parts": evidence.parts,
    }
    return line, failed


def text_of_warning(warning: warnings.WarningMessage) -> str:
    lines = str(warning.message).strip().splitlines() or [""]
    return f"{warning.category.__name__}: {without_addresses(lines[0])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", action="append", help="a case; may be repeated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("meeting", dist.distributed_c10d._get_default_store())
    options.out.mkdir(parents=True, exist_ok=True)
    Held.meeting = Meeting(store, rank, world, options.out)
    with open(options.out / f"rank{rank}.json", "w", encoding="utf-8") as lines:
        for name in options.only or CASES:
            Held.meeting.begin(name)
            line, failed = run_case(name, rank, world)
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            Held.meeting.begin(f"{name} is done")
            if any(Held.meeting.meet("failed" if failed else "")):
                make_sound_again()
            else:
                dist.barrier()
    Held.meeting.meet()
    dist.destroy_process_group()
    time.sleep(0.2)


def make_sound_again() -> None:
    """Give the next case a process group that no failure has touched."""
    if dist.is_initialized():
        Held.meeting.close()
    else:
        Held.meeting.meet()
        Held.meeting.meet()
    Held.meeting.open()


if __name__ == "__main__":
    main()
