"""One rank of a job that several ranks of NCCL can run on one GPU; it knows no profiler.

    torchrun --nproc-per-node 2 nccl_job.py late --backend nccl --out FOLDER

Each rank writes its losses, its own clock, the collectives that a step must have, and what torch's
profiler has counted in the last steps. With gloo, the same job runs on the CPU. A rank ends itself
after `--limit-s`, so that a deadlock ends only its own job.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sharded_job import PROBED, Job, fsdp2, make_experts, make_tp, pipeline, plain_step
from sharded_models import BATCH, MICROBATCHES, WIDTH, Model, bytes_of
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BUCKET_MB = 1
"""The gradients of a model that is 128 wide make two buckets of about this size."""

STUCK_AT = 40
"""The step in which a fault is planted."""
CAPTURED_AT = 20
"""The step from which on a step is a graph of the device."""
EXIT_CODE = 7
"""The exit code of a rank that leaves."""
WARM_UPS = 3
"""A backward must have run so often, on another stream, before it is captured."""


def isolate() -> None:
    """Make NCCL believe that each rank has a host of its own, with one GPU.

    Otherwise it refuses two ranks on one GPU. They talk through sockets of this machine.
    """
    os.environ |= {
        "NCCL_HOSTID": f"rank{os.environ['RANK']}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MAX_NCHANNELS": "2",
        "NCCL_DEBUG": "WARN",
    }


def accumulate(model: Any, *, exchanges_each: bool) -> Callable[[Any, Any], float]:
    """Return a step of several backwards, of which the last or each exchanges gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        parts = list(zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True))
        for number, (inputs, targets) in enumerate(parts, 1):
            exchanges = exchanges_each or number == MICROBATCHES
            with contextlib.nullcontext() if exchanges else model.no_sync():
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


class Replayed:
    """Trains on a captured graph of the device, which has the collectives inside."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model = model
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self._x, self._y = (torch.zeros(BATCH, WIDTH, device=device) for _ in range(2))
        self._graph: Any = None
        self._loss, self._steps = torch.zeros(()), 0

    def _train(self) -> torch.Tensor:
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(self._x), self._y)
        loss.backward()
        parameters: Any = self._model.parameters()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
        return loss

    def _capture(self) -> None:
        """Capture a step in the usual mode, in which a call of any thread can spoil it."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self._train()
        torch.cuda.current_stream().wait_stream(aside)
        self._optimizer.zero_grad()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._train()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self._x.copy_(x)
        self._y.copy_(y)
        if self._steps == CAPTURED_AT:
            self._capture()
        self._steps += 1
        if self._graph is None:
            self._loss = self._train()
        else:
            self._graph.replay()
        self._optimizer.step()
        return float(self._loss.detach())


def make_sharded(scenario: str, model: Model, device: torch.device) -> Job | None:
    """Return the job of a scenario that shards its model or its samples in some way."""
    if scenario == "fsdp2":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        return fsdp2(mesh, model)
    if scenario == "tp":
        return make_tp(model, device.type)
    if scenario == "pp":
        return pipeline(model, 1, device.type)
    if scenario == "experts":
        return make_experts(model, device.type)
    return None


def make_job(scenario: str, model: Model, device: torch.device) -> tuple[Job, Any]:
    """Return the job of a scenario, and the module of DDP if it has one."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sharded = make_sharded(scenario, model, device)
    if sharded is not None:
        return sharded, None
    if scenario == "graph":  # its expected collectives are those of a replay, which calls none
        return Job(Replayed(model, device).step, {}, world, rank), None
    wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    if scenario in ("no_sync", "every_sync"):
        step = accumulate(wrapped, exchanges_each=scenario == "every_sync")
    elif scenario == "compiled":
        backend = "inductor" if device.type == "cuda" else "aot_eager"
        compiled: Any = torch.compile(wrapped, backend=backend)
        step = plain_step(compiled)
    else:
        step = plain_step(wrapped)
    return Job(step, {}, world, rank), wrapped


def expect_buckets(module: Any, rounds: int) -> dict[str, tuple[int, int]]:
    """Return the all-reduces of a step, as DDP itself logs its buckets."""
    logged = module._get_ddp_logging_data()  # noqa: SLF001  # torch has no public name for it
    said = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
    sizes = [int(size) for size in said.split(",")]
    assert sum(sizes) == bytes_of(module), said
    return {"all_reduce": (rounds * len(sizes), rounds * sum(sizes))}


class Late:
    """Lets a rank sleep in its forward, and measures how long it did."""

    def __init__(self, model: Model, seconds: float) -> None:
        self._seconds = seconds
        self.ns: list[int] = []
        model.blocks[0].register_forward_pre_hook(self._sleep)

    def _sleep(self, *_: object) -> None:
        began = time.monotonic_ns()
        time.sleep(self._seconds)
        self.ns.append(time.monotonic_ns() - began)


class Probe:
    """torch's profiler over the last steps, which has nothing in common with profkit's hooks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self.is_on = False

    def start(self) -> None:
        self.is_on = True
        self._profiler.start()

    @contextlib.contextmanager
    def step(self, number: int) -> Any:
        """Mark a step; its kernels end inside it."""
        if not self.is_on:
            yield
            return
        with torch.profiler.record_function(f"probed {number}"):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize()

    def read(self) -> dict[str, Any]:
        """Return how often each operation began, and the length of NCCL's kernels by step."""
        self._profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return read_events(events)


def read_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the operations that began, and NCCL's kernels with their length by step."""
    ops: Counter[str] = Counter()
    steps, kernels = [], defaultdict(list)
    for event in sorted(events, key=lambda each: float(each.get("ts", 0))):
        kind, name = event.get("cat"), str(event.get("name"))
        if kind == "cpu_op" and name.startswith("c10d::"):
            ops[PROBED.get(name[6:], name)] += 1
        elif kind == "user_annotation" and name.startswith("probed "):
            steps.append((event["ts"] + event["dur"], name[7:]))
        elif kind == "kernel" and "nccl" in name.lower():
            step = next((number for end, number in reversed(steps) if event["ts"] < end), "")
            kernels[step].append([name, event["dur"]])
    return {"ops": dict(ops), "kernels": dict(kernels)}


def stand_still() -> None:
    """Do nothing, and never enter the collective for which the others wait."""
    while True:
        time.sleep(60)


def leave() -> None:
    """End this rank without a word."""
    os._exit(EXIT_CODE)


def fail() -> None:
    """Raise what nobody catches."""
    raise ValueError("a label is missing")


FAULTS: dict[str, Callable[[], None]] = {"stuck": stand_still, "exits": leave, "raises": fail}
"""What the last rank does."""


def exchange(device: torch.device, *, is_odd: bool) -> None:
    """Sum a tensor, which is much larger on one rank."""
    summed = torch.ones(1 << 20 if is_odd else 4, device=device)
    dist.all_reduce(summed)
    summed.sum().item()  # NCCL's call returns at once


def plant_fault(options: argparse.Namespace, device: torch.device) -> None:
    """Let the last rank do something else; a signal ends each rank, as by who kills a job."""
    signal.setitimer(signal.ITIMER_REAL, options.stuck_s)
    is_odd = dist.get_rank() == dist.get_world_size() - 1
    if is_odd:
        (options.out / "planted").write_text(str(time.time_ns()), encoding="utf-8")
    if options.scenario == "sizes":
        exchange(device, is_odd=is_odd)
    elif is_odd:
        FAULTS[options.scenario]()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario")
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--probe", type=int, default=4, help="count so many of the last steps")
    parser.add_argument("--late-ms", type=float, default=30.0, help="so late is the last rank")
    parser.add_argument("--limit-s", type=int, default=60)
    parser.add_argument("--stuck-s", type=float, default=20.0, help="so long a hang lasts")
    return parser.parse_args()


def train(job: Job, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train, and return the losses, the job's own clock and what the probe has seen."""
    torch.manual_seed(2)
    count = options.steps * BATCH * job.data_parallel
    data = TensorDataset(torch.randn(count, WIDTH), torch.randn(count, WIDTH))
    sampler: Any = DistributedSampler(data, job.data_parallel, job.data_rank, shuffle=False)
    losses, ends, probe = [], [time.monotonic_ns()], Probe(device)
    for number, (x, y) in enumerate(DataLoader(data, BATCH, sampler=sampler)):
        if number == options.steps - options.probe:
            probe.start()
        if number == STUCK_AT and options.scenario in (*FAULTS, "sizes"):
            plant_fault(options, device)
        with probe.step(number):
            losses.append(job.step(x.to(device), y.to(device)).hex())
        ends.append(time.monotonic_ns())
    step_ns = [end - start for start, end in itertools.pairwise(ends)]
    return {"losses": losses, "step_ns": step_ns, "probe": probe.read(), "probed": options.probe}


def main() -> None:
    options = parse()
    signal.alarm(options.limit_s)
    device = torch.device("cuda:0" if options.backend == "nccl" else "cpu")
    if options.backend == "nccl":
        isolate()
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(
        options.backend, device_id=device if options.backend == "nccl" else None
    )
    rank = dist.get_rank()
    is_last = rank == dist.get_world_size() - 1
    model = Model().to(device)
    late = Late(model, options.late_ms / 1e3) if options.scenario == "late" and is_last else None
    job, module = make_job(options.scenario, model, device)
    result = train(job, options, device)
    result["late_ns"] = late.ns if late is not None else []
    result["replayed"] = {"from_step": CAPTURED_AT, "kernels": len(list(model.parameters()))}
    result["nccl"] = torch.cuda.nccl.version() if options.backend == "nccl" else None
    rounds = MICROBATCHES if options.scenario == "every_sync" else 1
    expected = job.expected if module is None else expect_buckets(module, rounds)
    result["expected"] = {op: list(numbers) for op, numbers in expected.items()}
    (options.out / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()  # a rank that leaves while another still speaks to it ends that one
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
